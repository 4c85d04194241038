"""SpikingGCN: propagated features as firing probabilities of a spiking linear classifier (Zhu et al., IJCAI 2022).

    H = min(P^K X, 1)         s_t ~ Bernoulli(H)         o_t = LIF(s_t W)         rate = (1 / T) sum_t o_t
    loss = mean squared error of the rate and the one-hot label

A node is given the class whose neuron fires most. Features must lie in [0, 1], or be scaled to it (``scale``). P^K X is
computed once and only for the nodes of a pass. The neuron subtracts its threshold when it fires, as the authors' does.

Differences from the authors' code: a step of the optimiser takes all training nodes, not 64, at a constant rate;
nothing is added to H (they add 0.05 on CiteSeer and PubMed); one draw of the inputs serves all validations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import initialise
from spikegcl.baselines.inputs import Inputs, wrap
from spikegcl.baselines.spiking import Pass, count_layers, count_spikes, fit_spiking, to_scipy
from spikegcl.energy import Layer, Operations
from spikegcl.errors import FeatureError
from spikegcl.fused import run_neurons
from spikegcl.graph import features_of
from spikegcl.neurons import Neuron
from spikegcl.propagate import make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

BLOCK = 4096  # nodes of the last pass whose P^K X is held at once: it has far more entries than X
_ALMOST_ONE = 1 - 2.0**-24


@dataclass(frozen=True)
class SpikingGCNSettings(Settings):
    hops: int = 2  # K; the authors'
    steps: int = 20  # T; GreatX, a port by one of the SpikeGCL authors. The authors take 200 to 400
    threshold: float = 1.0  # GreatX; the authors take 0.1 to 0.6 with a slower neuron
    tau: float = 2.0  # GreatX; the authors take 30 to 80
    alpha: float = 1.0  # sharpness of the sigmoid surrogate; the authors'
    lr: float = 0.01  # our choice; best near 1 / (inputs that fire at a step), for which the presets have one a graph
    weight_decay: float = 0.0  # our choice; the authors take 0.01, with a tenth of the labels
    epochs: int = 200  # the authors', Cora
    patience: int = 0  # 0: all epochs are run and the best is kept
    scale: bool = False  # True: every column is mapped to [0, 1] first

    RANGES: ClassVar = {
        "hops": (1, 100), "steps": (1, 10**6), "tau": (1, 10**9), "epochs": (0, 10**9), "patience": (0, 10**9),
    }  # fmt: skip


class Bernoulli:
    """Inputs of n nodes that fire independently with probabilities H (n x d); those of 1 and more always fire.

    A sparse H is not drawn entry by entry. Arrivals of a Poisson process that runs along the entries, -log(1 - p) of
    time for each, fall into an entry at least once with probability p: the work is that of the spikes, not of H.
    """

    def __init__(self, rates: Any) -> None:
        self.rates = rates
        self.nodes = rates.shape[0]
        if sp.issparse(rates):
            self._ends = np.cumsum(-np.log1p(-rates.data.clip(0, _ALMOST_ONE).astype(np.float64)))

    def draw(self, steps: int, key: int, device: torch.device | str = "cpu") -> tuple[Inputs, list[int]]:
        """Spikes of all steps, one below the other (T*n x d), and how many there are in each step."""
        rng = np.random.Generator(np.random.SFC64(key))
        if not sp.issparse(self.rates):
            drawn = rng.random((steps, *self.rates.shape), np.float32) < self.rates
            stacked = drawn.reshape(-1, self.rates.shape[1]).astype(np.float32)
            return wrap(stacked, device), drawn.sum((1, 2)).tolist()
        entries = [self._fire(rng) for _ in range(steps)]
        counts = [len(part) for part in entries]
        starts = [np.searchsorted(part, self.rates.indptr[:-1]) for part in entries]
        indptr = np.concatenate([*(np.cumsum([0, *counts])[:-1, None] + starts), [sum(counts)]])
        columns = self.rates.indices[np.concatenate(entries)]
        shape = (steps * self.nodes, self.rates.shape[1])
        return wrap(sp.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape), device), counts

    def _fire(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The entries of H that fire in one step, in ascending order."""
        total = self._ends[-1] if len(self._ends) else 0.0
        arrivals = rng.standard_exponential(rng.poisson(total) + 1).cumsum()
        entries: NDArray[np.int64] = np.searchsorted(
            self._ends[:-1], arrivals[:-1] * (total / arrivals[-1]), side="right"
        )
        return entries[np.diff(entries, prepend=-1) > 0]


class SpikingGCN(nn.Module):
    """One linear map without a bias, d x C, and C neurons a node."""

    def __init__(self, features: int, classes: int, settings: SpikingGCNSettings, seed: int) -> None:
        super().__init__()
        self.neuron = Neuron("LIF", settings.threshold, "subtract", "sigmoid", settings.alpha)
        self.steps, self.tau = settings.steps, settings.tau
        self.weight = nn.Parameter(torch.empty(features, classes))
        initialise(self, noise.generator(seed, "spiking-gcn"))

    def forward(self, inputs: Bernoulli, key: int) -> Pass:
        """Firing rates, n x C, and the spikes of inputs and outputs; the key decides which inputs fire."""
        drawn, counts = inputs.draw(self.steps, key, self.weight.device)
        currents = (drawn @ self.weight).view(self.steps, inputs.nodes, -1)
        spikes = run_neurons(self.neuron, currents, self.steps, self.tau)
        return Pass(spikes.mean(0), torch.stack([torch.tensor(counts), count_spikes(spikes)]))


def mean_squared_error(rates: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(rates, nn.functional.one_hot(labels, rates.shape[1]).float())


def to_unit_interval(features: Any, scale: bool) -> Any:
    """Features in [0, 1], sparse or dense as they come: checked, or scaled column by column.

    Scaling maps the range of a column together with zero to [0, 1], so that a column without negative values keeps
    its zeros.
    """
    low, high = (np.asarray(bound, np.float32) for bound in _bounds(features))
    if not scale:
        if low.min() < 0 or high.max() > 1:
            raise FeatureError(
                f"SpikingGCN reads features as probabilities, but these lie between {low.min():g} and {high.max():g}; "
                "give --set scale=true to map every column to [0, 1]"
            )
        return features
    if low.min() < 0 and sp.issparse(features):
        features = features.toarray()
    shifted = features - low if low.min() < 0 else features
    inverse = 1 / np.where(high > low, high - low, 1)
    return sp.csr_array(shifted @ sp.diags_array(inverse)) if sp.issparse(shifted) else shifted * inverse


def _bounds(features: Any) -> tuple[Any, Any]:
    """Smallest and largest value of every column, zero included."""
    if sp.issparse(features):
        low, high = features.min(0).toarray().ravel(), features.max(0).toarray().ravel()
    else:
        low, high = features.min(0), features.max(0)
    return np.minimum(low, 0), np.maximum(high, 0)


def fit(
    graph: Graph,
    settings: SpikingGCNSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    adjacency = to_scipy(make_operator(graph))
    nearer = to_unit_interval(features_of(graph), settings.scale)
    for _ in range(settings.hops - 1):
        nearer = adjacency @ nearer
    model = SpikingGCN(graph.num_features, graph.num_classes, settings, seed).to(device)

    def prepare(nodes: NDArray[np.int64]) -> Bernoulli:
        return Bernoulli(adjacency[nodes] @ nearer)

    def forward(inputs: Bernoulli, epoch: int | None) -> Pass:
        result: Pass = model(inputs, noise.derive(seed, "inputs", epoch or 0))
        return result

    return fit_spiking(
        model, prepare, forward,
        torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay), graph, settings,
        _layers(Shape.of(graph), settings), split=split, epochs=settings.epochs, patience=settings.patience,
        clock=clock, block=BLOCK, loss=mean_squared_error, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: SpikingGCNSettings) -> int:
    """d C."""
    return shape.features * shape.classes


def operations(shape: Shape, settings: SpikingGCNSettings, spikes: tuple[int, ...] = ()) -> Operations:
    return count_layers(_layers(shape, settings), [spikes] if spikes else [])


def _layers(shape: Shape, settings: SpikingGCNSettings) -> tuple[Layer, ...]:
    """Propagation once, then T products of a draw with the weights and a charge for every output neuron."""
    nodes, features, classes, steps = shape.nodes, shape.features, shape.classes, settings.steps
    return (
        Layer("propagation", aggregation=settings.hops * shape.entries * features),
        Layer("classifier", steps * nodes * (features + 1) * classes, encoding=steps * nodes * features),
    )


METHOD = Method(
    "spiking-gcn", "SpikingGCN", SpikingGCNSettings, fit, parameters, operations, unsupervised=False, spiking=True
)  # fmt: skip
