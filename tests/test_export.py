"""Exports are read back with the tools they are made for and give the same bits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spikegcl import export
from spikegcl.bits import unpack
from spikegcl.codes import Codes
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset
from spikegcl.errors import ConfigError
from spikegcl.training import embed_graph, train

nir = pytest.importorskip("nir")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

NEURONS = [
    ("IF", "zero", 1),
    ("IF", "subtract", 1),
    ("LIF", "zero", 2),
    ("LIF", "subtract", 1.5),
    ("PLIF", "subtract", 1),
]


@pytest.fixture(scope="module")
def sbm():
    return load_dataset("sbm:nodes=120,classes=3,num_features=20")


def trained(graph, **settings):
    return train(graph, Config(**{"steps": 5, "channels": 12, "epochs": 2, **settings})).model


def membranes(model, currents):
    """Charged membranes N x T x H in double precision: how far every decision is from the threshold."""
    neuron = model.neuron.neuron
    gain = 1.0 if neuron.kind == "IF" else 1 / float(model.neuron.tau.detach())
    state, charged = np.zeros_like(currents[:, 0], dtype=np.float64), []
    for step in range(currents.shape[1]):
        v = (1.0 if neuron.kind == "IF" else 1 - gain) * state + gain * currents[:, step]
        fired = v >= neuron.threshold
        state = np.where(fired, v - neuron.threshold if neuron.reset == "subtract" else 0, v)
        charged.append(v)
    return np.stack(charged, 1)


def replay(graph, inputs):
    """Run a NIR graph on inputs (T x ... x H) by NIR's equations: forward Euler with the dt of the metadata."""
    dt = float(graph.metadata["dt"])
    zero = np.zeros_like(inputs[0], dtype=np.float64)
    state = dict.fromkeys(graph.nodes, zero)
    held = {name: zero for name, node in graph.nodes.items() if isinstance(node, nir.Delay)}
    order = list(held)  # a delay gives what it received a step ago, so it can go first; the others follow their sources
    while len(order) < len(graph.nodes):
        order += [
            name
            for name in graph.nodes
            if name not in order and all(source in order for source, target in graph.edges if target == name)
        ]
    outputs = []
    for current in inputs:
        values = {}
        for name in order:
            node = graph.nodes[name]
            x = sum(values[source] for source, target in graph.edges if target == name and source in values)
            v = state[name]
            if isinstance(node, nir.Input):
                values[name] = current.astype(np.float64)
            elif isinstance(node, nir.Delay):
                assert (node.delay == dt).all()
                values[name] = held[name]
            elif isinstance(node, (nir.I, nir.IF)):
                state[name] = v + dt * node.r * x
            elif isinstance(node, (nir.LI, nir.LIF)):
                state[name] = v + dt / node.tau * (node.v_leak - v + node.r * x)
            elif isinstance(node, nir.Threshold):
                values[name] = (x > node.threshold).astype(np.float64)
            elif isinstance(node, nir.Scale):
                values[name] = x * node.scale
            else:
                assert isinstance(node, nir.Output)
                values[name] = x
            if isinstance(node, (nir.IF, nir.LIF)):
                values[name] = (state[name] > node.v_threshold).astype(np.float64)
                state[name] = np.where(values[name] == 1, node.v_reset, state[name])
            elif isinstance(node, (nir.I, nir.LI)):
                values[name] = state[name]
        for name in held:
            held[name] = sum(values[source] for source, target in graph.edges if target == name)
        outputs.append(values["output"])
    return np.stack(outputs)


@pytest.mark.parametrize(("kind", "reset", "tau"), NEURONS)
def test_nir_graph_replays_to_the_same_spikes(sbm, tmp_path, kind, reset, tau):
    model = trained(sbm, neuron=kind, reset=reset, tau=float(tau))
    export.export_nir(model, tmp_path / "m.nir")
    graph = nir.read(tmp_path / "m.nir")
    currents = export.currents(model, sbm)
    assert np.abs(membranes(model, currents) - model.neuron.neuron.threshold).min() > 1e-7  # nothing to round away
    spikes = replay(graph, currents.transpose(1, 0, 2)).transpose(1, 0, 2)
    expected = unpack(embed_graph(model, sbm), model.bits).reshape(spikes.shape)
    assert 0.05 < expected.mean() < 0.95
    assert np.array_equal(spikes, expected)


def test_nir_fires_at_the_threshold_itself(sbm):
    """NIR fires above its threshold, we at ours: a membrane exactly there has to fire, one just below not."""
    model = trained(sbm, neuron="IF", reset="zero", threshold=0.3)
    at = np.float32(0.3)
    current = np.array([[[at] * 12, [np.nextafter(at, np.float32(0))] * 12]], np.float32)
    assert replay(export.nir_graph(model), current)[0, :, 0].tolist() == [1, 0]


def test_nir_uses_a_plain_neuron_where_one_is_exact(sbm):
    model = trained(sbm, neuron="LIF", reset="subtract")
    assert isinstance(export.nir_graph(model).nodes["neuron"], nir.LIF)
    model.neuron.neuron = replace(model.neuron.neuron, kind="IF")
    assert {type(node).__name__ for node in export.nir_graph(model).nodes.values()} == {
        *("Input", "Output", "I", "Threshold", "Delay", "Scale")
    }


def run_onnx(path, model, graph):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(["spikes", "codes"], export.onnx_inputs(model, graph))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"encoder": "sage"},
        {"neuron": "IF", "reset": "zero", "activation": "relu"},
        {"layers": 3, "batch_norm": False, "neuron": "LIF", "tau": 2.0},
        {"encoder": "sage", "layers": 1, "channels": 3, "activation": "none"},
    ],
    ids=str,
)
def test_onnx_gives_the_same_bits(sbm, tmp_path, settings):
    model = trained(sbm, **settings)
    export.export_onnx(model, tmp_path / "m.onnx")
    assert np.abs(membranes(model, export.currents(model, sbm)) - model.neuron.neuron.threshold).min() > 1e-7
    spikes, codes = run_onnx(tmp_path / "m.onnx", model, sbm)
    expected = embed_graph(model, sbm)
    assert np.array_equal(codes, expected)
    assert np.array_equal(spikes, unpack(expected, model.bits).reshape(spikes.shape))


def test_onnx_on_digits_differs_at_most_where_a_membrane_is_at_the_threshold(tmp_path):
    graph = load_dataset("digits")
    model = train(graph, Config(epochs=2)).model
    export.export_onnx(model, tmp_path / "m.onnx")
    spikes, _ = run_onnx(tmp_path / "m.onnx", model, graph)
    expected = unpack(embed_graph(model, graph), model.bits).reshape(spikes.shape)
    near = np.abs(membranes(model, export.currents(model, graph)) - model.neuron.neuron.threshold) < 2e-6
    assert near.mean() < 1e-4
    assert np.array_equal(spikes[~near], expected[~near])


def test_onnx_embeds_another_graph(sbm, tmp_path):
    model = trained(sbm)
    export.export_onnx(model, tmp_path / "m.onnx")
    other = load_dataset("sbm:nodes=90,classes=3,num_features=20")
    assert np.array_equal(run_onnx(tmp_path / "m.onnx", model, other)[1], embed_graph(model, other))


def test_onnx_of_a_compact_model_reads_its_components(tmp_path):
    graph = load_dataset("digits")
    model = train(graph, preset("compact", "")).model
    export.export_onnx(model, tmp_path / "m.onnx")
    inputs = export.onnx_inputs(model, graph)
    assert list(inputs) == ["features"] and inputs["features"].shape == (1797, 64)
    spikes, _ = run_onnx(tmp_path / "m.onnx", model, graph)
    expected = unpack(embed_graph(model, graph), model.bits).reshape(spikes.shape)
    near = np.abs(membranes(model, export.currents(model, graph)) - model.neuron.neuron.threshold) < 2e-6
    assert near.mean() < 1e-4
    assert np.array_equal(spikes[~near], expected[~near])


def test_onnx_of_attention_is_refused(sbm):
    with pytest.raises(ConfigError, match="gat encoder cannot be exported"):
        export.onnx_model(trained(sbm, encoder="gat", epochs=0))


@pytest.mark.parametrize("ids", [None, ["a", "é", "ccc"]])
def test_npy_and_faiss_hold_codes_and_ids(tmp_path, ids):
    codes = Codes.from_bits(np.eye(3, 13, dtype=np.uint8), ids)
    assert export.export_npy(codes, tmp_path / "c.npy") == [tmp_path / "c.npy", tmp_path / "c.ids.npy"]
    assert np.array_equal(np.load(tmp_path / "c.npy"), codes.packed)
    assert np.load(tmp_path / "c.ids.npy").tolist() == codes.ids.tolist()
    faiss = pytest.importorskip("faiss")
    export.export_faiss(codes, tmp_path / "f.faiss")
    index = faiss.read_index_binary(str(tmp_path / "f.faiss"))
    distances, rows = index.search(codes.packed, 1)
    assert (index.d, rows[:, 0].tolist(), distances[:, 0].tolist()) == (16, [0, 1, 2], [0, 0, 0])
    assert np.load(tmp_path / "f.ids.npy").tolist() == codes.ids.tolist()


def test_command_writes_every_format(run, trained_run):
    shutil.copytree(trained_run, "r")
    for to, path in (("nir", "r/model.nir"), ("onnx", "r/model.onnx"), ("faiss", "sub/c.faiss"), ("npy", "sub/c.npy")):
        code, out, _ = run("export", "r", "--to", to, "--json", *([] if path.startswith("r/") else ["-o", path]))
        assert code == 0
        files = json.loads(out)["files"]
        assert files[0] == path
        assert all(Path(file).is_file() for file in files)
    assert run("export", "r", "--to", "tar")[0] == 2
    code, _, err = run("export", "nowhere", "--to", "npy")
    assert code == 1
    assert "no run folder" in err


def test_an_export_does_not_replace_what_it_is_made_of(run, trained_run):
    shutil.copytree(trained_run, "r")
    before = {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()}
    for to, output in (("npy", "r/codes.arrow"), ("nir", "r/model.safetensors"), ("onnx", "r/config.toml")):
        code, _, err = run("export", "r", "--to", to, "-o", output)
        assert code == 1
        assert "choose another --output" in err
    assert before == {path.name: path.read_bytes() for path in Path("r").iterdir() if path.is_file()}


@pytest.mark.parametrize("to", ["nir", "onnx", "faiss", "npy"])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(trained_run, tmp_path, to):
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY));"
        "from spikegcl.cli import main; sys.argv = ['spikegcl', *sys.argv[1:]]; main()"
    )
    arguments = ["export", trained_run, "--to", to, "-o", tmp_path / f"out.{to}"]
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("cannot write") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
