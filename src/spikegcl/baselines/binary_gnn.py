"""BinaryGNN: GraphSAGE with 1-bit weights and 1-bit inputs (Bahri et al., CVPR 2021).

    h_l = B_l(mean of h_(l-1) over neighbours) + B'_l(h_(l-1)),    three layers, h_0 = X, logits = h_3
    B(x) = (q(n(x)) sign(W)) a b      n batch norm, q the sign, a a learned scalar, b one learned scale a channel

The first layer takes X as it is (no n, no q). Weights are kept within [-1, 1], where the straight-through gradient
passes. Cross-entropy on the training nodes; the epoch with the best validation accuracy is kept. Every step takes the
whole graph at a constant rate, as the authors do on ogbn-proteins (on ogbn-products they sample and lower the rate).

With ``distil`` the network is reached in stages that share one architecture, each started from the weights of the one
before and taught by its logits. The authors start every stage afresh, and their second stage never gets its tanh:

    teacher    q = relu, real weights       stage 2    q = sign, real weights
    stage 1    q = tanh, real weights       stage 3    q = sign, 1-bit weights

    loss = (1 - strength) cross-entropy + strength temperature^2 KL(teacher / temperature, student / temperature)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.binary import sign
from spikegcl.baselines.common import fit_classifier
from spikegcl.baselines.inputs import Inputs, dropout, make_inputs
from spikegcl.energy import Layer, Operations, binary_layer, dense_layer
from spikegcl.propagate import Operator, make_operator, propagate
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

LAYERS = 3
MOMENTUM = 0.999  # the authors' batch norm: an epoch is the whole graph, so the last statistics are the right ones


@dataclass(frozen=True)
class BinaryGNNSettings(Settings):
    hidden: int = 64  # the width that gives the parameter counts printed in the SpikeGCL paper
    dropout: float = 0.5  # the authors', between layers
    lr: float = 0.01  # the authors' for full batches
    epochs: int = 300  # over all stages; validation accuracy is flat from there on
    patience: int = 0  # 0: all epochs are run and the best is kept
    row_normalise: bool = False  # the authors' graphs have dense features
    distil: bool = False  # the parameter counts printed in the SpikeGCL paper are those of one network
    strength: float = 0.1  # the authors', of the teacher's part in the loss
    temperature: float = 2.0  # the authors'

    RANGES: ClassVar = {
        "hidden": (1, 65536),
        "dropout": (0, 0.99),
        "epochs": (0, 10**9),
        "patience": (0, 10**9),
        "strength": (0, 1),
        "temperature": (1e-6, 1e6),
    }


class Stage(NamedTuple):
    """How much of the network is binary: the function on the inputs of layers 2 and 3, and whether weights are bits."""

    quantise: Callable[[Tensor], Tensor]
    binary_weights: bool


BINARY = Stage(sign, True)
CASCADE = (Stage(torch.relu, False), Stage(torch.tanh, False), Stage(sign, False), BINARY)


class Block(nn.Module):
    """(q(n(x)) sign(W)) a b: N x d_in -> N x d_out. The block of a first layer has neither n nor q."""

    def __init__(self, width_in: int, width_out: int, first: bool) -> None:
        super().__init__()
        self.normalise = None if first else nn.BatchNorm1d(width_in, momentum=MOMENTUM)
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.scale = nn.Parameter(torch.ones(()))
        self.channel_scale = nn.Parameter(torch.ones(width_out))

    def forward(self, x: Tensor | Inputs, stage: Stage) -> Tensor:
        if stage.binary_weights and self.training:
            self.weight.data.clamp_(-1, 1)
        weight = sign(self.weight) if stage.binary_weights else self.weight
        if self.normalise is not None:
            x = stage.quantise(self.normalise(x))
        return x @ weight * (self.scale * self.channel_scale)


class BinaryGNN(nn.Module):
    """``stage`` says how much of it is binary."""

    def __init__(self, features: int, classes: int, settings: BinaryGNNSettings, seed: int) -> None:
        super().__init__()
        self.stage = BINARY
        pairs = list(itertools.pairwise(_widths(features, classes, settings)))
        self.neighbour = nn.ModuleList(Block(*pair, first=not number) for number, pair in enumerate(pairs))
        self.root = nn.ModuleList(Block(*pair, first=not number) for number, pair in enumerate(pairs))
        rng = noise.generator(seed, "binary-gnn")
        for block in (*self.neighbour, *self.root):
            bound = math.sqrt(6 / len(block.weight))
            nn.init.uniform_(block.weight, -bound, bound, generator=rng)

    def forward(self, operator: Operator, x: Inputs, rate: float = 0.0, key: int = 0) -> Tensor:
        """Logits, N x C, with dropout ``rate`` on what enters layers 2 and 3. ``operator`` is the mean."""
        # A first layer is linear, so its mean may follow its product: H columns travel instead of d.
        hidden: Tensor = propagate(operator, self.neighbour[0](x, self.stage)) + self.root[0](x, self.stage)
        for number in range(1, len(self.root)):
            hidden = dropout(hidden, rate, noise.derive(key, number))
            mean = propagate(operator, hidden)
            hidden = self.neighbour[number](mean, self.stage) + self.root[number](hidden, self.stage)
        return hidden


def _widths(features: int, classes: int, settings: BinaryGNNSettings) -> tuple[int, ...]:
    return (features, *(settings.hidden,) * (LAYERS - 1), classes)


def distillation_loss(student: Tensor, teacher: Tensor, targets: Tensor, settings: BinaryGNNSettings) -> Tensor:
    """(1 - s) CE(student, targets) + s t^2 KL(softmax(teacher / t) || softmax(student / t)); logits are n x C."""
    warm, given = (torch.log_softmax(logits / settings.temperature, 1) for logits in (student, teacher))
    divergence = nn.functional.kl_div(warm, given, log_target=True, reduction="batchmean")
    known = nn.functional.cross_entropy(student, targets)
    return (1 - settings.strength) * known + settings.strength * settings.temperature**2 * divergence


def fit(
    graph: Graph,
    settings: BinaryGNNSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, "mean", device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = BinaryGNN(graph.num_features, graph.num_classes, settings, seed).to(device)
    stages = CASCADE if settings.distil else (BINARY,)
    history: list[Epoch] = []
    teacher: Tensor | None = None

    def forward(epoch: int | None) -> Tensor:
        rate, number = (0.0, 0) if epoch is None else (settings.dropout, len(history) + epoch)
        logits: Tensor = model(operator, inputs, rate, noise.derive(seed, "dropout", number))
        return logits

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        if teacher is None:
            return nn.functional.cross_entropy(logits, targets)
        return distillation_loss(logits, teacher, targets, settings)

    def numbered(epoch: Epoch) -> Epoch:
        return dataclasses.replace(epoch, epoch=len(history) + epoch.epoch)

    for stage in stages:
        model.stage = stage
        fitted = fit_classifier(
            model, forward, torch.optim.Adam(model.parameters(), lr=settings.lr), graph, settings, split=split,
            epochs=settings.epochs // len(stages), patience=settings.patience, clock=clock, loss=loss,
            on_epoch=on_epoch and (lambda epoch: on_epoch(numbered(epoch))),
        )  # fmt: skip
        fitted = dataclasses.replace(
            fitted, history=history + [numbered(epoch) for epoch in fitted.history], epoch=len(history) + fitted.epoch
        )
        history = fitted.history
        assert split is not None  # else fit_classifier would have refused
        with torch.no_grad():
            teacher = forward(None)[torch.from_numpy(split.train).to(device)]
    return fitted


def parameters(shape: Shape, settings: BinaryGNNSettings) -> int:
    """Two blocks a layer: d_in d_out + d_out + 1, and 2 d_in for the batch norm of all but the first layer."""
    widths = _widths(shape.features, shape.classes, settings)
    blocks = ((d_in + 1) * d_out + 1 for d_in, d_out in itertools.pairwise(widths))
    return 2 * (sum(blocks) + 2 * sum(widths[1:-1]))


def operations(shape: Shape, settings: BinaryGNNSettings, spikes: tuple[int, ...] = ()) -> Operations:
    """The 1-bit formula for layers 2 and 3, whose neighbours are averaged before the product; layer 1 has real inputs,
    and its products with 1-bit weights are counted in full, as the additions they are."""
    nodes, edges = shape.nodes, shape.edges
    first, *others = itertools.pairwise(_widths(shape.features, shape.classes, settings))
    layers: list[Layer] = [
        dense_layer("layer 1, neighbours", nodes, edges, *first),
        dense_layer("layer 1, root", nodes, 0, *first),
    ]
    for number, (d_in, d_out) in enumerate(others, 2):
        root = binary_layer(f"layer {number}, root", nodes, 0, d_in, d_out)
        layers += [Layer(f"layer {number}, neighbours", root.products, edges * d_in), root]
    return Operations(tuple(layers))


METHOD = Method(
    "binary-gnn", "BinaryGNN", BinaryGNNSettings, fit, parameters, operations, unsupervised=False, binary=True
)  # fmt: skip
