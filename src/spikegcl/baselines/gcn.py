"""GCN: two graph convolutions trained on labels (Kipf and Welling, ICLR 2017).

    logits = P dropout(relu(P dropout(X) W_1 + b_1)) W_2 + b_2,   P = D^-1/2 (A + I) D^-1/2

Cross-entropy on the training nodes; the epoch with the best validation accuracy is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import Convolution, fit_classifier, initialise
from spikegcl.baselines.inputs import Inputs, dropout, make_inputs
from spikegcl.energy import Operations, layers_of
from spikegcl.propagate import Operator, make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch


@dataclass(frozen=True)
class GCNSettings(Settings):
    hidden: int = 64  # between the authors' 16 (140 labels) and the 256 used on large graphs
    dropout: float = 0.5  # the authors'
    lr: float = 0.01  # the authors'
    weight_decay: float = 5e-4  # the authors', on the first layer only
    epochs: int = 200  # the authors'
    patience: int = 0  # 0: all epochs are run and the best is kept
    row_normalise: bool = True  # the authors'

    RANGES: ClassVar = {"hidden": (1, 65536), "dropout": (0, 0.99), "epochs": (0, 10**9), "patience": (0, 10**9)}


class GCN(nn.Module):
    def __init__(self, features: int, classes: int, settings: GCNSettings, seed: int) -> None:
        super().__init__()
        self.first = Convolution(features, settings.hidden)
        self.second = Convolution(settings.hidden, classes)
        initialise(self, noise.generator(seed, "gcn"))

    def forward(self, operator: Operator, x: Inputs, rate: float = 0.0, key: int = 0) -> Tensor:
        """Logits, N x C, with dropout ``rate`` on the input of both layers."""
        hidden = torch.relu(self.first(operator, x.dropout(rate, noise.derive(key, 1))))
        logits: Tensor = self.second(operator, dropout(hidden, rate, noise.derive(key, 2)))
        return logits


def fit(
    graph: Graph,
    settings: GCNSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = GCN(graph.num_features, graph.num_classes, settings, seed).to(device)
    groups = [
        {"params": model.first.parameters(), "weight_decay": settings.weight_decay},
        {"params": model.second.parameters(), "weight_decay": 0.0},
    ]

    def forward(epoch: int | None) -> Tensor:
        rate = 0.0 if epoch is None else settings.dropout
        logits: Tensor = model(operator, inputs, rate, noise.derive(seed, "dropout", epoch or 0))
        return logits

    return fit_classifier(
        model, forward, torch.optim.Adam(groups, lr=settings.lr), graph, settings, split=split,
        epochs=settings.epochs, patience=settings.patience, clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: GCNSettings) -> int:
    """d H + H + H C + C."""
    return (shape.features + 1) * settings.hidden + (settings.hidden + 1) * shape.classes


def operations(shape: Shape, settings: GCNSettings, spikes: tuple[int, ...] = ()) -> Operations:
    widths = (shape.features, settings.hidden, shape.classes)
    return Operations(layers_of(widths, shape.nodes, shape.entries))


METHOD = Method("gcn", "GCN", GCNSettings, fit, parameters, operations, unsupervised=False)
