"""DGI: tell nodes of the graph from nodes of a graph with shuffled features (Velickovic et al., ICLR 2019).

    h = prelu(P X W + b)          h~ = prelu(P X[order] W + b)          s = sigmoid(mean_i h_i)
    loss = (1 / 2N) sum_i BCE(h_i . M s + c, 1) + BCE(h~_i . M s + c, 0)

Training stops when the loss has not improved for ``patience`` epochs; the epoch with the lowest loss is kept, as in the
authors' code. The embedding is h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import Convolution, fit_encoder, initialise
from spikegcl.baselines.inputs import Inputs, make_inputs
from spikegcl.energy import Operations, dense_layer
from spikegcl.propagate import Operator, make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch


@dataclass(frozen=True)
class DGISettings(Settings):
    hidden: int = 512  # the authors'
    lr: float = 1e-3  # the authors'
    epochs: int = 10_000  # the authors' limit; patience ends nearly every run before it
    patience: int = 20  # the authors', on the training loss
    row_normalise: bool = True  # the authors'
    project_summary: bool = False  # an H x H map of the summary; only the paper's parameter counts seem to have it

    RANGES: ClassVar = {"hidden": (1, 65536), "epochs": (0, 10**9), "patience": (0, 10**9)}


class DGI(nn.Module):
    """Encoder (one convolution, one PReLU slope) and the bilinear discriminator."""

    def __init__(self, features: int, settings: DGISettings, seed: int) -> None:
        super().__init__()
        self.convolution = Convolution(features, settings.hidden)
        self.slope = nn.PReLU()
        self.bilinear = nn.Parameter(torch.empty(settings.hidden, settings.hidden))
        self.bias = nn.Parameter(torch.zeros(()))
        self.projection = (
            nn.Linear(settings.hidden, settings.hidden, bias=False) if settings.project_summary else nn.Identity()
        )
        initialise(self, noise.generator(seed, "dgi"))

    def encode(self, operator: Operator, x: Inputs) -> Tensor:
        h: Tensor = self.slope(self.convolution(operator, x))
        return h

    def loss(self, operator: Operator, x: Inputs, order: Tensor) -> Tensor:
        """The loss against the graph whose node i has the features of node ``order[i]`` (int64, N)."""
        clean, shuffled = self.convolution.contrast(operator, x, order)
        clean, shuffled = self.slope(clean), self.slope(shuffled)
        direction = self.bilinear @ self.projection(clean.mean(0).sigmoid())
        logits = torch.cat([clean @ direction, shuffled @ direction]) + self.bias
        truth = torch.zeros_like(logits)
        truth[: len(clean)] = 1
        return nn.functional.binary_cross_entropy_with_logits(logits, truth)


def fit(
    graph: Graph,
    settings: DGISettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = DGI(graph.num_features, settings, seed).to(device)

    def loss(epoch: int) -> Tensor:
        order = torch.randperm(graph.num_nodes, generator=noise.generator(seed, "corruption", epoch))
        return model.loss(operator, inputs, order.to(device))

    return fit_encoder(
        model, lambda: model.encode(operator, inputs),
        torch.optim.Adam(model.parameters(), lr=settings.lr), loss, settings,
        epochs=settings.epochs, clock=clock, patience=settings.patience, select="loss", on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape: Shape, settings: DGISettings) -> int:
    """d H + H + 1 (slope) + H^2 + 1 (discriminator), and H^2 more if the summary is projected."""
    hidden = settings.hidden
    return (shape.features + 1) * hidden + 1 + hidden**2 * (1 + settings.project_summary) + 1


def operations(shape: Shape, settings: DGISettings, spikes: tuple[int, ...] = ()) -> Operations:
    return Operations((dense_layer("layer 1", shape.nodes, shape.entries, shape.features, settings.hidden),))


METHOD = Method("dgi", "DGI", DGISettings, fit, parameters, operations)
