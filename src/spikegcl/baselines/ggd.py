"""GGD: one score a node says whether it belongs to the graph or to one with shuffled features (Zheng et al.,
NeurIPS 2022).

    h = prelu(P X' W + b)          h~ = prelu(P X'[order] W + b)          score(h) = sum_o (M h + c)_o
    loss = (1 / 2N) sum_i BCE(score(h_i), 1) + BCE(score(h~_i), 0)

X' has a share of its columns zeroed, others each epoch. The epoch with the lowest loss is kept. The embedding is
h + P^hops h with the unmasked X.
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
from spikegcl.energy import Layer, Operations, dense_layer
from spikegcl.propagate import Operator, make_operator, propagate
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch


@dataclass(frozen=True)
class GGDSettings(Settings):
    hidden: int = 512  # the authors', on all graphs but Computers
    channel_slopes: bool = False  # the authors have one slope on citation graphs, one a channel elsewhere
    column_mask: float = 0.2  # the authors', on all graphs but arXiv
    hops: int = 5  # the authors', on citation graphs; 10 elsewhere smooths more than a small graph may bear
    lr: float = 1e-3  # the authors' default
    epochs: int = 500  # the authors' default
    patience: int = 500  # the authors', on the training loss
    row_normalise: bool = True  # the authors'

    RANGES: ClassVar = {
        "hidden": (1, 65536),
        "column_mask": (0, 0.99),
        "hops": (0, 10**6),
        "epochs": (0, 10**9),
        "patience": (0, 10**9),
    }


class GGD(nn.Module):
    """Encoder (one convolution, PReLU) and the linear layer whose outputs add up to the score."""

    def __init__(self, features: int, settings: GGDSettings, seed: int) -> None:
        super().__init__()
        self.convolution = Convolution(features, settings.hidden)
        self.slope = nn.PReLU(_slopes(settings))
        self.projection = nn.Linear(settings.hidden, settings.hidden)
        initialise(self, noise.generator(seed, "ggd"))

    def encode(self, operator: Operator, x: Inputs) -> Tensor:
        h: Tensor = self.slope(self.convolution(operator, x))
        return h

    def score(self, h: Tensor) -> Tensor:
        """sum_o (M h + c)_o = h . (M^T 1) + c . 1, so no N x H product is needed: N x H -> N."""
        return h @ self.projection.weight.sum(0) + self.projection.bias.sum()

    def loss(self, operator: Operator, x: Inputs, order: Tensor) -> Tensor:
        """The loss against the graph whose node i has the features of node ``order[i]`` (int64, N)."""
        clean, shuffled = self.convolution.contrast(operator, x, order)
        logits = torch.cat([self.score(self.slope(clean)), self.score(self.slope(shuffled))])
        truth = torch.zeros_like(logits)
        truth[: len(clean)] = 1
        return nn.functional.binary_cross_entropy_with_logits(logits, truth)


def read_out(operator: Operator, h: Tensor, hops: int) -> Tensor:
    """h + P^hops h: what a node is and what surrounds it, N x H."""
    far = h
    for _ in range(hops):
        far = propagate(operator, far)
    return h + far


def fit(
    graph: Graph,
    settings: GGDSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = GGD(graph.num_features, settings, seed).to(device)

    def loss(epoch: int) -> Tensor:
        order = torch.randperm(graph.num_nodes, generator=noise.generator(seed, "corruption", epoch))
        masked = inputs.mask_columns(settings.column_mask, noise.derive(seed, "mask", epoch))
        return model.loss(operator, masked, order.to(device))

    return fit_encoder(
        model, lambda: read_out(operator, model.encode(operator, inputs), settings.hops),
        torch.optim.Adam(model.parameters(), lr=settings.lr), loss, settings,
        epochs=settings.epochs, clock=clock, patience=settings.patience, select="loss", on_epoch=on_epoch,
    )  # fmt: skip


def _slopes(settings: GGDSettings) -> int:
    return settings.hidden if settings.channel_slopes else 1


def parameters(shape: Shape, settings: GGDSettings) -> int:
    """d H + H, the slopes (1 or H), H^2 + H."""
    hidden = settings.hidden
    return (shape.features + 1) * hidden + _slopes(settings) + (hidden + 1) * hidden


def operations(shape: Shape, settings: GGDSettings, spikes: tuple[int, ...] = ()) -> Operations:
    return Operations(
        (
            dense_layer("layer 1", shape.nodes, shape.entries, shape.features, settings.hidden),
            Layer("readout", aggregation=settings.hops * shape.entries * settings.hidden),
        )
    )


METHOD = Method("ggd", "GGD", GGDSettings, fit, parameters, operations)
