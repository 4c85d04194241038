"""Bi-GCN: graph convolutions with 1-bit weights and 1-bit features (Wang et al., CVPR 2021).

    gcn     logits = P L_2(P L_1(Z)),   P = D^-1/2 (A + I) D^-1/2, Z the features standardised by column
    saint   h_1 = P' L_1(Z) + L_2(Z),  h_2 = P' L_3(h_1) + L_4(h_1),  logits = [h_1, h_2] W + b
            P' = D^-1/2 A D^-1/2, Z the features standardised by row, W in full precision

Every L is a :class:`~spikegcl.baselines.binary.BinaryLinear`; the sign in it is the only non-linearity. ``gcn`` is the
model of the paper, ``saint`` the one of its GraphSAINT experiments, here trained on the whole graph. Cross-entropy on
the training nodes; the epoch with the best validation accuracy is kept. Validation and predictions run on packed bits.

Differences from the authors' code: columns are standardised by the moments of all nodes, where theirs takes averages
over epochs of the same numbers; they keep the epoch with the least validation loss; and the sign of 0, see binary.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.binary import Binarised, BinaryLinear, Signs, mean_abs, packed
from spikegcl.baselines.common import fit_classifier
from spikegcl.baselines.inputs import dropout
from spikegcl.energy import Operations, binary_layer, dense_layer, layers_of
from spikegcl.graph import features_of
from spikegcl.propagate import Operator, make_operator, propagate
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

ROWS = 1024  # feature rows standardised at a time: a bag of words is dense only in blocks
COLUMN_EPSILON, ROW_EPSILON = 1e-5, 1e-4  # the authors': added to the variance of a column, to the deviation of a row


@dataclass(frozen=True)
class BiGCNSettings(Settings):
    variant: str = "gcn"  # the model of the paper
    hidden: int = 64  # the authors', gcn; they take 256 for saint
    dropout: float = 0.4  # the authors', gcn
    lr: float = 1e-3  # the authors', gcn
    weight_decay: float = 5e-4  # the authors'
    epochs: int = 1000  # the authors', gcn
    patience: int = 0  # the authors': all epochs are run and the best is kept

    CHOICES: ClassVar = {"variant": ("gcn", "saint")}
    RANGES: ClassVar = {"hidden": (1, 65536), "dropout": (0, 0.99), "epochs": (0, 10**9), "patience": (0, 10**9)}


class BiGCN(nn.Module):
    operator_kind = "gcn"

    def __init__(self, features: int, classes: int, settings: BiGCNSettings, seed: int) -> None:
        super().__init__()
        self.first = BinaryLinear(features, settings.hidden)
        self.second = BinaryLinear(settings.hidden, classes)
        _initialise(self, seed)

    def forward(self, operator: Operator, x: Binarised, rate: float = 0.0, key: int = 0) -> Tensor:
        """Logits, N x C, with dropout ``rate`` on the signs that enter both layers."""
        hidden = propagate(operator, self.first(x, rate, noise.derive(key, 1)))
        return propagate(operator, self.second(hidden, rate, noise.derive(key, 2)))


class BiSAINT(nn.Module):
    operator_kind = "symmetric"

    def __init__(self, features: int, classes: int, settings: BiGCNSettings, seed: int) -> None:
        super().__init__()
        widths = (features, settings.hidden)
        self.neighbour = nn.ModuleList(BinaryLinear(width, settings.hidden) for width in widths)
        self.root = nn.ModuleList(BinaryLinear(width, settings.hidden) for width in widths)
        self.head = nn.Linear(2 * settings.hidden, classes)
        _initialise(self, seed)

    def forward(self, operator: Operator, x: Binarised, rate: float = 0.0, key: int = 0) -> Tensor:
        """Logits, N x C, with dropout ``rate`` on h_1 and h_2, of the second layer's input and of the head's alike."""
        first = propagate(operator, self.neighbour[0](x)) + self.root[0](x)
        place = noise.derive(key, 1)
        second = propagate(operator, self.neighbour[1](first, rate, place)) + self.root[1](first, rate, place)
        hidden = [dropout(first, rate, place), dropout(second, rate, noise.derive(key, 2))]
        logits: Tensor = self.head(torch.cat(hidden, 1))
        return logits


def _initialise(module: nn.Module, seed: int) -> None:
    rng = noise.generator(seed, "bi-gcn")
    for part in module.modules():
        if isinstance(part, BinaryLinear):
            part.initialise(rng)
        elif isinstance(part, nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=5**0.5, generator=rng)
            nn.init.zeros_(part.bias)


def make_model(features: int, classes: int, settings: BiGCNSettings, seed: int) -> BiGCN | BiSAINT:
    kind = BiGCN if settings.variant == "gcn" else BiSAINT
    return kind(features, classes, settings, seed)


def binarise_features(graph: Graph, by: str, device: torch.device | str = "cpu") -> Binarised:
    """The features, standardised ``by`` column or by row, in their 1-bit form."""
    features = features_of(graph)
    mean = np.asarray(features.mean(0, dtype=np.float64)).ravel()
    square = (features.power(2) if graph.is_sparse else np.square(features, dtype=np.float64)).mean(0)
    deviation = np.sqrt(np.maximum(np.asarray(square).ravel() - mean**2, 0) + COLUMN_EPSILON)
    centre, inverse = (torch.from_numpy(part.astype(np.float32)) for part in (mean, 1 / deviation))
    ones, scales = [], []
    for first in range(0, graph.num_nodes, ROWS):
        rows = features[first : first + ROWS]
        x = torch.from_numpy(rows.toarray() if graph.is_sparse else rows)
        if by == "column":
            z = (x - centre) * inverse
        else:
            z = (x - x.mean(1, keepdim=True)) / (x.std(1, correction=0, keepdim=True) + ROW_EPSILON)
        ones.append(Signs.of(z).ones)
        scales.append(mean_abs(z, 1))
    return Binarised(Signs(torch.cat(ones).to(device), graph.num_features), torch.cat(scales).to(device))


def fit(
    graph: Graph,
    settings: BiGCNSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    model = make_model(graph.num_features, graph.num_classes, settings, seed).to(device)
    operator = make_operator(graph, model.operator_kind, device)
    inputs = binarise_features(graph, "column" if settings.variant == "gcn" else "row", device)

    def forward(epoch: int | None) -> Tensor:
        if epoch is None:
            logits: Tensor = packed(model)(operator, inputs)
        else:
            logits = model(operator, inputs, settings.dropout, noise.derive(seed, "dropout", epoch))
        return logits

    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    return fit_classifier(
        model, forward, optimiser, graph, settings, split=split, epochs=settings.epochs, patience=settings.patience,
        clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: BiGCNSettings) -> int:
    """gcn: d H + H + H C + C. saint: 2 (d H + H) + 2 (H^2 + H) + 2 H C + C. A 1-bit weight counts as one."""
    hidden, classes = settings.hidden, shape.classes
    if settings.variant == "gcn":
        return (shape.features + 1) * hidden + (hidden + 1) * classes
    return 2 * (shape.features + 1) * hidden + 2 * (hidden + 1) * hidden + (2 * hidden + 1) * classes


def operations(shape: Shape, settings: BiGCNSettings, spikes: tuple[int, ...] = ()) -> Operations:
    """The 1-bit formula for every binary layer; only neighbour branches have edges, the head of saint is dense."""
    nodes, hidden, classes = shape.nodes, settings.hidden, shape.classes
    if settings.variant == "gcn":
        widths = (shape.features, hidden, classes)
        return Operations(layers_of(widths, nodes, shape.entries, binary_layer))
    branches = tuple(
        binary_layer(f"layer {number}, {branch}", nodes, edges, width, hidden)
        for number, width in ((1, shape.features), (2, hidden))
        for branch, edges in (("neighbours", shape.edges), ("root", 0))
    )
    return Operations((*branches, dense_layer("head", nodes, 0, 2 * hidden, classes)))


METHOD = Method("bi-gcn", "Bi-GCN", BiGCNSettings, fit, parameters, operations, unsupervised=False, binary=True)
