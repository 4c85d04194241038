"""GC-SNN and GA-SNN: spiking graph convolution and attention with STFN (Xu et al., IJCAI 2021).

The input is the same at every step. With H_t = X in layer 1 and the spikes of layer 1 in layer 2, for each layer

    S_t = sum_j P_ij H_t,j W + b                  GC-SNN: P = D^-1/2 (A + I) D^-1/2
                                                  GA-SNN: P = softmax_j LeakyReLU(a . H_t,i W + c . H_t,j W), by heads
    Y = scale rho threshold (S - mean) / sqrt(var + eps) + shift        mean, var of a node over all channels and steps
    V_t = kappa V_t-1 (1 - Z_t-1) + Y_t           Z_t = fire(V_t)       kappa = 1 - 1 / tau
    logits = (1 / T) sum_t Z_t W' + b'

STFN (the second line) needs S at all steps before the neuron makes its first one, so a layer runs through all of time
before the next begins. It mixes nothing between nodes: layer 2 is computed only for the nodes whose logits are wanted.

No code of the authors is public. Choices of ours, where the description leaves room: two layers; self-loops; learned
scale and shift by channel, shared by the nodes; one dropout mask for all steps, on the input of both layers; features
that are not 0 or 1 enter as they are, as currents; a linear read-out; heads side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.attention import SLOPE
from spikegcl.baselines.common import initialise
from spikegcl.baselines.inputs import Inputs, dropout, make_inputs, wrap
from spikegcl.baselines.spiking import Pass, count_layers, count_spikes, fit_spiking, to_scipy
from spikegcl.energy import Layer, Operations
from spikegcl.errors import ConfigError
from spikegcl.fused import run_neurons
from spikegcl.neurons import Neuron
from spikegcl.propagate import make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

EPSILON = 1e-5


@dataclass(frozen=True)
class GCSNNSettings(Settings):
    hidden: int = 256  # what most of the paper's parameter counts need
    steps: int = 8  # T; a public port (SGNNBench) takes 20 to 25
    threshold: float = 0.5  # the port's
    rho: float = 1.0  # our choice: currents spread as far as the threshold is away
    tau: float = 2.0  # the port's
    alpha: float = 1.0  # the rectangular surrogate is 1 / alpha wide and alpha high
    affine: bool = True  # learned scale and shift of STFN; the paper's parameter counts have none
    dropout: float = 0.1  # the authors'
    lr: float = 0.01  # the authors'
    weight_decay: float = 5e-4  # the authors'
    epochs: int = 200  # the authors'
    patience: int = 0  # 0: all epochs are run and the best is kept

    RANGES: ClassVar = {
        "hidden": (1, 65536), "steps": (1, 10**6), "threshold": (1e-9, 10**9), "tau": (1, 10**9),
        "dropout": (0, 0.99), "epochs": (0, 10**9), "patience": (0, 10**9),
    }  # fmt: skip


@dataclass(frozen=True)
class GASNNSettings(GCSNNSettings):
    heads: int = 4  # the port's
    dropout: float = 0.6  # the authors'
    lr: float = 0.005  # the authors'

    RANGES: ClassVar = {**GCSNNSettings.RANGES, "heads": (1, 65536)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise ConfigError(f"hidden = {self.hidden} cannot be divided among {self.heads} heads")


class Rows(NamedTuple):
    """Some nodes of the graph (int64, n) and their rows of P, or of A + I for attention (n x N)."""

    nodes: Tensor
    matrix: Inputs


class Convolution(nn.Module):
    """S = P H W + b, for the nodes of ``rows``: H is X (one step for all) or T x N x d_in; S is 1 or T x n x d_out."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, rows: Rows, x: Tensor | Inputs) -> Tensor:
        if isinstance(x, Inputs):
            return (rows.matrix @ (x @ self.weight))[None] + self.bias
        return torch.stack([rows.matrix @ step for step in x]) @ self.weight + self.bias


class Attention(nn.Module):
    """The same with P by K attention heads of width d_out / K, computed from H at every step."""

    def __init__(self, width_in: int, width_out: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.from_self = nn.Parameter(torch.empty(heads, width_out // heads))
        self.from_other = nn.Parameter(torch.empty(heads, width_out // heads))
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, rows: Rows, x: Tensor | Inputs) -> Tensor:
        """Features are multiplied by W before they travel, spikes after: only n of the N nodes are multiplied then."""
        heads = self.weight.view(len(self.weight), *self.from_self.shape)
        if isinstance(x, Inputs):
            z = (x @ self.weight).view(-1, *self.from_self.shape)
            shares = attention(rows, (z * self.from_self).sum(2), (z * self.from_other).sum(2))
            mixed = [replace(rows.matrix, values=share) @ z[:, k] for k, share in enumerate(shares)]
            return torch.cat(mixed, 1)[None] + self.bias
        scores = (x @ torch.cat([(heads * a).sum(2) for a in (self.from_self, self.from_other)], 1)).chunk(2, 2)
        steps = []
        for step, own, other in zip(x, *scores, strict=True):
            shares = attention(rows, own, other)
            mixed = [replace(rows.matrix, values=share) @ step @ heads[:, k] for k, share in enumerate(shares)]
            steps.append(torch.cat(mixed, 1))
        return torch.stack(steps) + self.bias


def attention(rows: Rows, own: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """For each of K heads the share of every entry of ``rows``; ``own`` and ``other`` are the scores (N x K).

    The entry (i, j) gets softmax_j LeakyReLU(own_i + other_j).
    """
    pattern = rows.matrix.pattern
    assert pattern is not None
    receiver, sender = pattern.rows, pattern.indices.long()
    score = own.index_select(0, rows.nodes).index_select(0, receiver) + other.index_select(0, sender)
    score = nn.functional.leaky_relu(score, SLOPE)
    top = torch.segment_reduce(score.detach(), "max", offsets=pattern.indptr, axis=0)
    weight = (score - top.index_select(0, receiver)).exp()
    total = torch.zeros_like(top).index_add(0, receiver, weight)
    return (weight / total.index_select(0, receiver)).T.contiguous().unbind()


class STFN(nn.Module):
    """Spatial-temporal feature normalisation: a node's currents at all channels and steps become N(0, size^2)."""

    def __init__(self, width: int, size: float, affine: bool) -> None:
        super().__init__()
        self.size = size
        self.scale: Tensor | float = nn.Parameter(torch.ones(width)) if affine else 1.0
        self.shift: Tensor | float = nn.Parameter(torch.zeros(width)) if affine else 0.0

    def forward(self, currents: Tensor) -> Tensor:
        """T x n x H -> T x n x H. One step (1 x n x H) stands for any number of equal ones."""
        var, mean = torch.var_mean(currents, (0, 2), correction=0, keepdim=True)
        return self.size * (currents - mean) * (var + EPSILON).rsqrt() * self.scale + self.shift


class SpatioTemporalSNN(nn.Module):
    """Two spiking layers of convolution or attention, and a linear read-out of the firing rates."""

    def __init__(self, features: int, classes: int, settings: GCSNNSettings, seed: int) -> None:
        super().__init__()
        self.steps, self.tau = settings.steps, settings.tau
        self.neuron = Neuron("LIF", settings.threshold, "zero", "rectangle", settings.alpha)
        self.layers = nn.ModuleList([_layer(width, settings) for width in (features, settings.hidden)])
        size = settings.rho * settings.threshold
        self.norms = nn.ModuleList([STFN(settings.hidden, size, settings.affine) for _ in self.layers])
        self.head = nn.Linear(settings.hidden, classes)
        initialise(self, noise.generator(seed, "st-snn"))

    def forward(self, x: Inputs, everyone: Rows, rows: Rows, rate: float = 0.0, key: int = 0) -> Pass:
        """Logits of the nodes of ``rows``, with dropout ``rate``; ``everyone`` has the rows of all nodes."""
        first = self._spikes(0, everyone, x.dropout(rate, noise.derive(key, 1)))
        given = first if rate == 0 else first * dropout(torch.ones_like(first[0]), rate, noise.derive(key, 2))
        second = self._spikes(1, rows, given)
        return Pass(self.head(second.mean(0)), torch.stack([count_spikes(first), count_spikes(second)]))

    def _spikes(self, number: int, rows: Rows, x: Tensor | Inputs) -> Tensor:
        """T x n x H. The neuron adds 1 / tau of what it is given, so it is given tau times the current."""
        currents = self.norms[number](self.layers[number](rows, x))
        return run_neurons(self.neuron, self.tau * currents, self.steps, self.tau)


def _layer(width: int, settings: GCSNNSettings) -> nn.Module:
    if isinstance(settings, GASNNSettings):
        return Attention(width, settings.hidden, settings.heads)
    return Convolution(width, settings.hidden)


def fit(
    graph: Graph,
    settings: GCSNNSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    inputs = make_inputs(graph, device=device)
    matrix = to_scipy(make_operator(graph, "sum" if isinstance(settings, GASNNSettings) else "gcn"))
    model = SpatioTemporalSNN(graph.num_features, graph.num_classes, settings, seed).to(device)

    def prepare(nodes: NDArray[np.int64]) -> Rows:
        return Rows(torch.from_numpy(nodes).to(device), wrap(matrix[nodes], device))

    everyone = prepare(np.arange(graph.num_nodes))

    def forward(rows: Rows, epoch: int | None) -> Pass:
        rate = 0.0 if epoch is None else settings.dropout
        result: Pass = model(inputs, everyone, rows, rate, noise.derive(seed, "dropout", epoch or 0))
        return result

    return fit_spiking(
        model, prepare, forward,
        torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay), graph, settings,
        _layers(Shape.of(graph), settings), split=split, epochs=settings.epochs, patience=settings.patience,
        clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: GCSNNSettings) -> int:
    """(d + 1) h + (h + 1) h + (h + 1) C, 4 h more for scales and shifts, and 4 h for attention."""
    hidden = settings.hidden
    extra = 4 * hidden * (settings.affine + isinstance(settings, GASNNSettings))
    return (shape.features + 1) * hidden + (hidden + 1) * (hidden + shape.classes) + extra


def operations(shape: Shape, settings: GCSNNSettings, spikes: tuple[int, ...] = ()) -> Operations:
    return count_layers(_layers(shape, settings), [spikes] if spikes else [])


def _layers(shape: Shape, settings: GCSNNSettings) -> tuple[Layer, ...]:
    """Layer 1 multiplies once, layer 2 at every step, weights before edges. A current is normalised, then charges.

    Attention adds two scores a node and head, and a share an entry and head.
    """
    nodes, entries, hidden, steps = shape.nodes, shape.entries, settings.hidden, settings.steps
    attention = 2 * nodes * hidden + entries * settings.heads if isinstance(settings, GASNNSettings) else 0
    return (
        Layer(
            "layer 1", nodes * (shape.features + 1 + steps) * hidden + attention, entries * hidden,
            encoding=steps * nodes * shape.features,
        ),
        Layer("layer 2", steps * (nodes * (hidden + 2) * hidden + attention), steps * entries * hidden),
        Layer("classifier", nodes * hidden * shape.classes),
    )  # fmt: skip


METHODS = (
    Method("gc-snn", "GC-SNN", GCSNNSettings, fit, parameters, operations, unsupervised=False, spiking=True),
    Method("ga-snn", "GA-SNN", GASNNSettings, fit, parameters, operations, unsupervised=False, spiking=True),
)
