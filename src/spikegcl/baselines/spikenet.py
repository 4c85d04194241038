"""SpikeNet on a static graph: every step samples neighbours anew, and thresholds adapt (Li et al., AAAI 2023).

    I_t = X W_1 + b_1 + mean_{j in far samples of i} (X V_1 + c_1)_j        S_t = fire(I_t)       N x hidden
    J_t = D_t W_2 + b_2 + mean_{j in near samples of i} (D_t V_2 + c_2)_j   R_t = fire(J_t)       N x channels
    logits = [R_1 ... R_T] W + b                                            D_t = dropout(S_t)

Samples are drawn with replacement from the neighbours of i and i itself, at each step anew. Neurons have tau = 1, so
they hold no membrane; their memory is a threshold that starts at 1 and becomes ``fade`` threshold + ``rise`` spike.

The authors sample a tree below each node of a batch and keep thresholds by place in that tree, whichever node stands
there. Here every node has its own neurons, all nodes draw equally many neighbours in layer 1, and all training nodes
together make one step of the optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import Linear, initialise
from spikegcl.baselines.inputs import Inputs, dropout, wrap
from spikegcl.baselines.spiking import Pass, count_layers, count_spikes, fit_spiking
from spikegcl.energy import Layer, Operations
from spikegcl.fused import run_neurons
from spikegcl.graph import features_of
from spikegcl.neurons import Neuron
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch


@dataclass(frozen=True)
class SpikeNetSettings(Settings):
    hidden: int = 128  # width of layer 1; what the paper's parameter counts need
    channels: int = 128  # width of layer 2, and of the code of a step; likewise
    steps: int = 15  # T; the authors'
    near: int = 5  # neighbours sampled by layer 2; the authors'
    far: int = 2  # neighbours sampled by layer 1; the authors' for the neighbours of a node
    threshold: float = 1.0  # the authors'
    fade: float = 0.7  # the authors'
    rise: float = 0.2  # the authors'
    alpha: float = 1.0  # sharpness of the sigmoid surrogate; the authors'
    dropout: float = 0.5  # the authors'
    lr: float = 5e-3  # the authors'
    weight_decay: float = 0.01  # the authors', by leaving AdamW as it is
    epochs: int = 100  # the authors'
    patience: int = 0  # 0: all epochs are run and the best is kept
    bias: bool = True  # the authors'; one of the paper's parameter counts has none

    RANGES: ClassVar = {
        "hidden": (1, 65536), "channels": (1, 65536), "steps": (1, 10**6), "near": (1, 10**6), "far": (1, 10**6),
        "dropout": (0, 0.99), "epochs": (0, 10**9), "patience": (0, 10**9),
    }  # fmt: skip


class Sampler:
    """Uniform draws, with replacement, from the neighbours of a node and the node itself."""

    def __init__(self, graph: Graph) -> None:
        adjacency = sp.csr_array(graph.adjacency + sp.eye_array(graph.num_nodes, format="csr"))
        self.nodes = graph.num_nodes
        self.starts, self.degrees = adjacency.indptr[:-1].astype(np.int64), np.diff(adjacency.indptr)
        self.neighbours = adjacency.indices.astype(np.int64)

    def draw(self, nodes: NDArray[np.int64], steps: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """T x n x count: at every step ``count`` neighbours of each of the n ``nodes``."""
        place = rng.random((steps, len(nodes), count)) * self.degrees[nodes][:, None]
        drawn: NDArray[np.int64] = self.neighbours[self.starts[nodes][:, None] + place.astype(np.int64)]
        return drawn


def mean_rows(rows: NDArray[np.int64], total: int, device: torch.device | str) -> Inputs:
    """The matrix (n x total) whose product with x averages the ``rows`` (n x count) of x."""
    number, count = rows.shape
    values = np.full(rows.size, 1 / count, np.float32)
    return wrap(sp.csr_array((values, rows.ravel(), np.arange(0, rows.size + 1, count)), (number, total)), device)


class SpikeNet(nn.Module):
    def __init__(self, features: int, classes: int, settings: SpikeNetSettings, seed: int) -> None:
        super().__init__()
        hidden, channels, bias = settings.hidden, settings.channels, settings.bias
        self.settings = settings
        self.neuron = Neuron("LIF", settings.threshold, "zero", "sigmoid", settings.alpha)
        self.own = nn.ModuleList([Linear(features, hidden, bias), Linear(hidden, channels, bias)])
        self.others = nn.ModuleList([Linear(features, hidden, bias), Linear(hidden, channels, bias)])
        self.head = Linear(settings.steps * channels, classes, bias)
        initialise(self, noise.generator(seed, "spikenet"))

    def forward(self, x: Inputs, sampler: Sampler, nodes: NDArray[np.int64], rate: float = 0.0, key: int = 0) -> Pass:
        """Logits of ``nodes``; the key decides what is sampled and, with dropout ``rate``, what is dropped.

        Layer 1 runs for all nodes: any may be sampled. Its products with X are the same at every step.
        """
        steps, total, device = self.settings.steps, sampler.nodes, self.head.weight.device
        rng = np.random.Generator(np.random.SFC64(key))
        far = sampler.draw(np.arange(total), steps, self.settings.far, rng).reshape(-1, self.settings.far)
        near = sampler.draw(nodes, steps, self.settings.near, rng) + total * np.arange(steps)[:, None, None]
        currents = (mean_rows(far, total, device) @ self.others[0](x)).view(steps, total, -1) + self.own[0](x)
        first = self._fire(currents)
        given = dropout(first, rate, noise.derive(key, "dropout"))
        mean = mean_rows(near.reshape(-1, self.settings.near), steps * total, device) @ given.view(steps * total, -1)
        own = given.index_select(1, torch.from_numpy(nodes).to(device))
        second = self._fire(self.own[1](own) + self.others[1](mean).view(steps, len(nodes), -1))
        logits = self.head(second.transpose(0, 1).flatten(1))
        return Pass(logits, torch.stack([count_spikes(first), count_spikes(second)]))

    def _fire(self, currents: Tensor) -> Tensor:
        settings = self.settings
        return run_neurons(self.neuron, currents, settings.steps, fade=settings.fade, rise=settings.rise)


def fit(
    graph: Graph,
    settings: SpikeNetSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    inputs, sampler = wrap(normalize(features_of(graph)), device), Sampler(graph)
    model = SpikeNet(graph.num_features, graph.num_classes, settings, seed).to(device)

    def forward(nodes: NDArray[np.int64], epoch: int | None) -> Pass:
        rate, key = (0.0, 0) if epoch is None else (settings.dropout, epoch)
        result: Pass = model(inputs, sampler, nodes, rate, noise.derive(seed, "samples", key))
        return result

    return fit_spiking(
        model, lambda nodes: nodes, forward,
        torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay), graph, settings,
        _layers(Shape.of(graph), settings), split=split, epochs=settings.epochs, patience=settings.patience,
        clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: SpikeNetSettings) -> int:
    """2 (d + 1) h + 2 (h + 1) c + (T c + 1) C; without biases the ones are zeros."""
    one, hidden, channels = int(settings.bias), settings.hidden, settings.channels
    layers = 2 * (shape.features + one) * hidden + 2 * (hidden + one) * channels
    return layers + (settings.steps * channels + one) * shape.classes


def operations(shape: Shape, settings: SpikeNetSettings, spikes: tuple[int, ...] = ()) -> Operations:
    return count_layers(_layers(shape, settings), [spikes] if spikes else [])


def _layers(shape: Shape, settings: SpikeNetSettings) -> tuple[Layer, ...]:
    """Layer 1 multiplies once and samples T times; layer 2 does both T times; a charge for every neuron and step."""
    nodes, steps, hidden, channels = shape.nodes, settings.steps, settings.hidden, settings.channels
    return (
        Layer(
            "layer 1", nodes * (2 * shape.features + steps) * hidden, steps * nodes * settings.far * hidden,
            encoding=steps * nodes * shape.features,
        ),
        Layer("layer 2", steps * nodes * (2 * hidden + 1) * channels, steps * nodes * settings.near * hidden),
        Layer("classifier", nodes * steps * channels * shape.classes),
    )  # fmt: skip


METHOD = Method(
    "spikenet", "SpikeNet", SpikeNetSettings, fit, parameters, operations, unsupervised=False, spiking=True
)  # fmt: skip
