"""Take a model and its codes to other tools: numpy, faiss, NIR for spiking hardware, ONNX for everything else."""

from pathlib import Path

import faiss
import nir
import numpy as np
import onnxruntime

from spikegcl import SpikeGCLEmbedder, export, load_dataset

folder = Path("build/examples")
folder.mkdir(parents=True, exist_ok=True)

graph = load_dataset("digits")
embedder = SpikeGCLEmbedder().fit(graph)
model, codes = embedder.model_, embedder.codes_

# Packed bits and ids as plain arrays.
export.export_npy(codes, folder / "codes.npy")
packed, ids = np.load(folder / "codes.npy"), np.load(folder / "codes.ids.npy")
print(f"npy: {packed.shape[0]} codes of {packed.shape[1]} bytes, first id {ids[0]}")

# A binary index that faiss opens.
export.export_faiss(codes, folder / "codes.faiss")
index = faiss.read_index_binary(str(folder / "codes.faiss"))
distances, rows = index.search(packed[:1], 4)
print(f"faiss: nearest to {ids[0]} are {ids[rows[0]].tolist()} at {distances[0].tolist()} bits")

# The neuron as a NIR graph; it takes the currents of one node, T x H.
export.export_nir(model, folder / "neuron.nir")
parts = sorted(type(node).__name__ for node in nir.read(folder / "neuron.nir").nodes.values())
print(f"nir: {', '.join(parts)}, input {export.currents(model, graph)[0].shape}")

# Encoder and neuron as ONNX: features and normalised adjacency in, packed codes out.
export.export_onnx(model, folder / "model.onnx")
session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
(again,) = session.run(["codes"], export.onnx_inputs(model, graph))
flipped = int(np.unpackbits(again ^ packed).sum())
print(f"onnx: {flipped} of {packed.size * 8} bits differ")
