"""Runs for other tools: codes as .npy or a faiss index, the neuron as a NIR graph, encoder and neuron as ONNX."""

from __future__ import annotations

import copy
import importlib
import io
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spikegcl.augment import clean_view
from spikegcl.encoder import EPS, Encoder, Norm
from spikegcl.errors import ConfigError
from spikegcl.features import Features
from spikegcl.files import written_atomically
from spikegcl.propagate import make_operator
from spikegcl.search import write_faiss

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from spikegcl.codes import Codes
    from spikegcl.encoder import Convolution
    from spikegcl.graph import Graph
    from spikegcl.model import SpikeGCL

    Floats = NDArray[np.float32]

FORMATS = ("nir", "onnx", "faiss", "npy")
ONNX_ENCODERS = ("gcn", "sage", "linear")
OPSET, IR_VERSION = 18, 10  # the first opset whose ScatterND adds; a file version that releases from 2024 on read


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"this needs the package {name}: pip install '{extra}'") from None


# -------------------------------------------------------------------------------------------------------------- codes


def ids_path(path: Path) -> Path:
    """Where the ids of exported codes are: ``codes.npy`` and ``codes.faiss`` have theirs in ``codes.ids.npy``."""
    return path.with_name(path.stem + ".ids.npy")


def export_npy(codes: Codes, path: Path) -> list[Path]:
    """The packed bits (uint8, N x bytes, little-endian within bytes), and beside them the node ids (int64 or str)."""
    _save_array(path, np.ascontiguousarray(codes.packed))
    _save_array(ids_path(path), _plain_ids(codes))
    return [path, ids_path(path)]


def export_faiss(codes: Codes, path: Path) -> list[Path]:
    """A faiss IndexBinaryFlat whose row i is node i of the ids beside it; padding bits are zero and never differ."""
    _package("faiss", "faiss-cpu")
    write_faiss(path, codes.to_faiss())
    _save_array(ids_path(path), _plain_ids(codes))
    return [path, ids_path(path)]


def _plain_ids(codes: Codes) -> NDArray[Any]:
    """Ids as an array that is saved without pickle: strings of fixed length."""
    return codes.ids if codes.ids.dtype.kind in "iu" else np.array(codes.ids.tolist(), dtype=np.str_)


def _save_array(path: Path, array: NDArray[Any]) -> None:
    with written_atomically(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


# ------------------------------------------------------------------------------------------------------ spiking part


@torch.no_grad()
def currents(model: SpikeGCL, graph: Graph) -> Floats:
    """What the neurons of every node receive at every step: N x T x H, the input of the exported NIR graph."""
    model = copy.deepcopy(model).cpu()
    operator = make_operator(graph, model.encoder.operator_kind)
    view = clean_view(operator, Features(model.prepare(graph)), model.encoder.groups)
    with model.frozen():
        parts = [
            model.encoder.currents(view, first, steps).dense().view(graph.num_nodes, steps, -1)
            for first, steps in model.chunks(graph.num_nodes)
        ]
    return torch.cat(parts, 1).numpy()


def nir_graph(model: SpikeGCL) -> Any:
    """The spiking part as a ``nir.NIRGraph`` over the H neurons of one node (all nodes have the same).

    Time step dt = 1, forward Euler, membrane 0 at the start, T steps. NIR fires where v > v_threshold, we where
    V >= threshold: the exported threshold is the next smaller float32, which is the same test on float32 membranes.

    ===================  ==============================================================================================
    reset zero           nir.IF (r = 1) or nir.LIF (tau, r = 1, v_leak = 0), v_reset = 0: the same equations
    tau = 1, any reset   nir.LIF with tau = 1: one Euler step sets v = I, nothing is left that a reset could change
    reset subtract       NIR's neurons reset to a constant, so the reset is drawn as what it is, inhibition by the own
                         spike one step later: nir.I or nir.LI -> nir.Threshold -> nir.Delay(1) -> nir.Scale -> back.
                         The scale is -threshold for IF and -(tau - 1) threshold for LI, whose input is divided by tau
                         while the subtracted threshold decays by 1 - 1 / tau: f / tau = -(1 - 1 / tau) threshold.
    ===================  ==============================================================================================
    """
    nir = _package("nir", "spikegcl[export]")
    neuron, tau = model.neuron.neuron, float(model.neuron.tau.detach())
    leaky = neuron.kind != "IF"

    def full(value: float) -> Floats:
        return np.full(model.channels, value, np.float32)

    threshold = np.nextafter(full(neuron.threshold), np.float32(-np.inf))
    shape = np.array([model.channels])
    nodes = {"input": nir.Input({"input": shape}), "output": nir.Output({"output": shape})}
    if neuron.reset == "zero" or (leaky and tau == 1):
        cell = {"r": full(1), "v_threshold": threshold, "v_reset": full(0)}
        nodes["neuron"] = nir.LIF(tau=full(tau), v_leak=full(0), **cell) if leaky else nir.IF(**cell)
        edges = [("input", "neuron"), ("neuron", "output")]
    else:
        nodes["membrane"] = nir.LI(tau=full(tau), r=full(1), v_leak=full(0)) if leaky else nir.I(r=full(1))
        nodes["fire"] = nir.Threshold(threshold)
        nodes["delay"] = nir.Delay(full(1))
        nodes["reset"] = nir.Scale(full(-neuron.threshold * (tau - 1 if leaky else 1)))
        loop = ["input", "membrane", "fire", "delay", "reset", "membrane"]
        edges = [*itertools.pairwise(loop), ("fire", "output")]
    metadata = {
        "source": "spikegcl",
        "neuron": neuron.kind,
        "reset": neuron.reset,
        "threshold": neuron.threshold,
        "tau": tau if leaky else math.inf,
        "steps": model.steps,
        "dt": 1.0,
        "integration": "forward Euler",
    }
    return nir.NIRGraph(nodes, edges, metadata)


def export_nir(model: SpikeGCL, path: Path) -> list[Path]:
    """Write :func:`nir_graph` as a file that ``nir.read`` opens."""
    nir = _package("nir", "spikegcl[export]")
    file = io.BytesIO()  # HDF5 ends the process where the disk is full; the graph of one node's neurons is small
    nir.write(file, nir_graph(model))
    with written_atomically(path) as temporary:
        temporary.write_bytes(file.getvalue())
    return [path]


# --------------------------------------------------------------------------------------------------------------- ONNX


def onnx_inputs(model: SpikeGCL, graph: Graph) -> dict[str, NDArray[Any]]:
    """The inputs of the exported ONNX model for a graph.

    ``features`` float32 N x d in the graph's column order or, of a model that reads components, these and nothing else;
    ``edges`` int64 2 x M, receiving nodes above sending nodes; ``values`` float32 M: the entries of the normalised
    adjacency P (for gcn with the self-loops among the edges).
    """
    graph = model.prepare(graph)
    features = graph.features.toarray() if graph.is_sparse else graph.features
    if model.encoder.kind == "linear":
        return {"features": np.asarray(features)}
    operator = make_operator(graph, model.encoder.operator_kind)
    edges = torch.stack([operator.rows, operator.indices.long()])
    return {"features": np.asarray(features), "edges": edges.numpy(), "values": operator.values.numpy()}


def onnx_model(model: SpikeGCL) -> Any:
    """Encoder and neuron as an ``onnx.ModelProto`` for any graph with the model's feature columns.

    Inputs as :func:`onnx_inputs` makes them; outputs ``spikes`` uint8 N x T x H and ``codes`` uint8 N x ceil(T H / 8),
    the packed rows of the code file. Batch norm is folded into the weights with the frozen statistics, steps are
    unrolled. P z is gather, multiply, scatter-add; where a product lands within rounding of the threshold its bit may
    differ from ours, because sums are taken in another order.
    """
    if model.encoder.kind not in ONNX_ENCODERS:
        raise ConfigError(
            f"the {model.encoder.kind} encoder cannot be exported to ONNX, only {', '.join(ONNX_ENCODERS)} can"
        )
    return _OnnxBuilder(model).build()


def export_onnx(model: SpikeGCL, path: Path) -> list[Path]:
    """Write :func:`onnx_model`, checked for consistency."""
    onnx = _package("onnx", "spikegcl[export]")
    built = onnx_model(model)
    onnx.checker.check_model(built, full_check=True)
    with written_atomically(path) as temporary:
        temporary.write_bytes(built.SerializeToString())
    return [path]


class _OnnxBuilder:
    """Adds nodes one by one; every method takes and returns names of tensors."""

    def __init__(self, model: SpikeGCL) -> None:
        self.onnx = _package("onnx", "spikegcl[export]")
        self.model = copy.deepcopy(model).cpu()
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        out = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """A tensor in the file; equal ones are stored once."""
        array = np.array(value, dtype=kind, order="C")
        key = f"{array.dtype}{array.shape}{array.tobytes()!r}"
        if key not in self.constants:
            name = f"constant_{len(self.constants)}"
            self.constants[key] = self.onnx.numpy_helper.from_array(array, name)
        name_: str = self.constants[key].name
        return name_

    def build(self) -> Any:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        model, encoder = self.model, self.model.encoder
        self.count = self.op("Shape", "features", start=0, end=1)
        inputs = [helper.make_tensor_value_info("features", kinds.FLOAT, ["nodes", encoder.groups.columns])]
        if encoder.kind != "linear":
            self._read_edges()
            inputs.append(helper.make_tensor_value_info("edges", kinds.INT64, [2, "entries"]))
            inputs.append(helper.make_tensor_value_info("values", kinds.FLOAT, ["entries"]))
        state = self._zeros(model.channels)
        spikes = []
        for step in range(model.steps):
            current = self._first_layer(encoder, step)
            for layer, convolution in enumerate(encoder.shared):
                norm: Any = encoder.norms[layer] if len(encoder.norms) else None
                current = self._layer(convolution, self._activation(current), norm, slice(None), 0)  # type: ignore[arg-type]
            fired, state = self._neuron(current, state)
            spikes.append(self.op("Unsqueeze", fired, self.constant([1], np.int64)))
        stacked = self.op("Concat", *spikes, axis=1) if len(spikes) > 1 else spikes[0]
        self.op("Cast", stacked, name="spikes", to=kinds.UINT8)
        self._pack(stacked)
        outputs = [
            helper.make_tensor_value_info("spikes", kinds.UINT8, ["nodes", model.steps, model.channels]),
            helper.make_tensor_value_info("codes", kinds.UINT8, ["nodes", (model.bits + 7) // 8]),
        ]
        graph = helper.make_graph(self.nodes, "spikegcl", inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", OPSET)]
        built = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="spikegcl")
        helper.set_model_props(built, {"adjacency": encoder.operator_kind, "threshold": repr(model.config.threshold)})
        return built

    def _read_edges(self) -> None:
        self.receivers = self.op("Gather", "edges", self.constant(0, np.int64), axis=0)
        self.receivers = self.op("Unsqueeze", self.receivers, self.constant([1], np.int64))
        self.senders = self.op("Gather", "edges", self.constant(1, np.int64), axis=0)
        self.weights = self.op("Unsqueeze", "values", self.constant([1], np.int64))
        self.reach = self._scatter(self.weights, 1)

    def _first_layer(self, encoder: Encoder, step: int) -> str:
        low, high = (int(bound) for bound in encoder.groups.bounds[step : step + 2])
        columns = self.constant(encoder.groups.order[low:high], np.int64)
        x = self.op("Gather", "features", columns, axis=1)
        return self._layer(encoder.first, x, encoder.input_norm, slice(low, high), step)

    def _layer(self, convolution: Convolution, x: str, norm: Norm | None, rows: slice, step: int) -> str:
        """A = P x (s W) + reach (o W) + b, for SAGE also + x (s W_self) + o W_self; s and o are the batch norm's."""
        folded = [_fold(weight[rows], norm, rows) for weight in convolution.weights()]
        bias = convolution.bias[step].detach().numpy() + sum(shift for _, shift in folded[1:])
        weight, shift = folded[0]
        if self.model.encoder.kind == "linear":  # the graph is in the inputs already
            return self.op("Add", self.op("MatMul", x, self.constant(weight)), self.constant(bias))
        if len(weight) <= weight.shape[1]:  # the fewer columns travel along the edges
            out = self.op("MatMul", self._propagate(x, len(weight)), self.constant(weight))
        else:
            out = self._propagate(self.op("MatMul", x, self.constant(weight)), weight.shape[1])
        for own, _ in folded[1:]:
            out = self.op("Add", out, self.op("MatMul", x, self.constant(own)))
        out = self.op("Add", out, self.op("Mul", self.reach, self.constant(shift)))
        return self.op("Add", out, self.constant(bias))

    def _propagate(self, x: str, width: int) -> str:
        messages = self.op("Mul", self.op("Gather", x, self.senders, axis=0), self.weights)
        return self._scatter(messages, width)

    def _scatter(self, messages: str, width: int) -> str:
        return self.op("ScatterND", self._zeros(width), self.receivers, messages, reduction="add")

    def _zeros(self, width: int) -> str:
        shape = self.op("Concat", self.count, self.constant([width], np.int64), axis=0)
        return self.op("ConstantOfShape", shape)

    def _activation(self, x: str) -> str:
        kind = self.model.encoder.activation
        return x if kind == "none" else self.op("Elu" if kind == "elu" else "Relu", x)

    def _neuron(self, current: str, state: str) -> tuple[str, str]:
        neuron, tau = self.model.neuron.neuron, float(self.model.neuron.tau.detach())
        if neuron.kind == "IF":
            charged = self.op("Add", state, current)
        else:
            kept = self.op("Mul", state, self.constant(1 - 1 / tau))
            charged = self.op("Add", kept, self.op("Mul", current, self.constant(1 / tau)))
        threshold = self.constant(neuron.threshold)
        fired = self.op("Cast", self.op("GreaterOrEqual", charged, threshold), to=self.onnx.TensorProto.FLOAT)
        lost = self.op("Mul", fired, threshold if neuron.reset == "subtract" else charged)
        return fired, self.op("Sub", charged, lost)

    def _pack(self, stacked: str) -> None:
        """Little-endian bytes: bit b of byte k is worth 2^b, rows padded with zeros to whole bytes."""
        bits = self.model.bits
        rows = self.op("Reshape", stacked, self.constant([0, bits], np.int64))
        if bits % 8:
            rows = self.op("Pad", rows, self.constant([0, 0, 0, -bits % 8], np.int64))
        groups = self.op("Reshape", rows, self.constant([0, (bits + 7) // 8, 8], np.int64))
        worth = self.op("Mul", groups, self.constant(2.0 ** np.arange(8)))
        total = self.op("ReduceSum", worth, self.constant([2], np.int64), keepdims=0)
        self.op("Cast", total, name="codes", to=self.onnx.TensorProto.UINT8)


def _fold(weight: torch.Tensor, norm: Norm | None, rows: slice) -> tuple[Floats, Floats]:
    """Batch norm inside a product: BN(x) W = x (s W) + o W. Returns s W and the row o W."""
    matrix: Floats = weight.detach().numpy()
    if norm is None:
        return matrix, np.zeros(matrix.shape[1], np.float32)
    scale = norm.gamma[rows] * torch.rsqrt(norm.var[rows] + EPS)
    offset = norm.beta[rows] - norm.mean[rows] * scale
    return scale.detach().numpy()[:, None] * matrix, offset.detach().numpy() @ matrix
