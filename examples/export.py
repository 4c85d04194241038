"""Take a run to other tools: numpy, faiss, NIR for spiking hardware, ONNX for everything else."""

from pathlib import Path
from tempfile import TemporaryDirectory

import faiss
import nir
import numpy as np
import onnxruntime

from spikegcl import export
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.runs import make_codes
from spikegcl.training import train

graph = load_dataset("digits")
trained = train(graph, Config(epochs=3))
codes = make_codes(trained.codes, graph, trained.model)

with TemporaryDirectory() as folder:
    out = Path(folder)

    # Packed bits and ids as plain arrays.
    export.export_npy(codes, out / "codes.npy")
    packed, ids = np.load(out / "codes.npy"), np.load(out / "codes.ids.npy")
    print(f"npy: {packed.shape[0]} codes of {packed.shape[1]} bytes, first id {ids[0]}")

    # A binary index that faiss opens.
    export.export_faiss(codes, out / "codes.faiss")
    index = faiss.read_index_binary(str(out / "codes.faiss"))
    distances, rows = index.search(packed[:1], 4)
    print(f"faiss: nearest to {ids[0]} are {ids[rows[0]].tolist()} at {distances[0].tolist()} bits")

    # The neuron as a NIR graph; it takes the currents of one node, T x H.
    export.export_nir(trained.model, out / "neuron.nir")
    spiking = nir.read(out / "neuron.nir")
    currents = export.currents(trained.model, graph)
    print(
        f"nir: {', '.join(sorted(type(node).__name__ for node in spiking.nodes.values()))}, input {currents[0].shape}"
    )

    # Encoder and neuron as ONNX: features and normalised adjacency in, packed codes out.
    export.export_onnx(trained.model, out / "model.onnx")
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    (again,) = session.run(["codes"], export.onnx_inputs(trained.model, graph))
    flipped = int(np.unpackbits(again ^ packed).sum())
    print(f"onnx: {flipped} of {packed.size * 8} bits differ")
