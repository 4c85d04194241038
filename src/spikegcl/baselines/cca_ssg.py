"""CCA-SSG: two views agree in every dimension, and dimensions are uncorrelated (Zhang et al., NeurIPS 2021).

    Z = the columns of an encoder's output H, each shifted to mean 0 and divided by its standard deviation
    loss = -(1/N) tr(Z_1^T Z_2) + decorrelation * (||Z_1^T Z_1 / N - I||^2 + ||Z_2^T Z_2 / N - I||^2)

A view has a share of the undirected edges dropped and a share of the feature columns zeroed. The encoder is a stack of
graph convolutions with ReLU between them or, as the authors have it on Coauthor CS, an MLP that does not see the graph.
The embedding is H of the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import Convolution, Linear, fit_encoder, initialise
from spikegcl.baselines.inputs import Inputs, make_inputs
from spikegcl.energy import Operations, layers_of
from spikegcl.propagate import Operator, make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

SMALLEST = 1e-6  # a standard deviation below this counts as this, so that a constant column gives zeros


@dataclass(frozen=True)
class CCASSGSettings(Settings):
    encoder: str = "gcn"  # the authors', on all graphs but Coauthor CS
    layers: int = 2  # the authors', on all graphs but CiteSeer
    hidden: int = 512  # the authors'; every layer has this width
    decorrelation: float = 1e-3  # the authors', on five of seven graphs
    edge_drop: float = 0.4  # the middle of the authors' 0.3 to 0.5
    column_mask: float = 0.2  # the middle of the authors' 0 to 0.5
    lr: float = 1e-3  # the authors'
    epochs: int = 50  # the authors', on four of seven graphs
    row_normalise: bool = False  # features as they are; the citation graphs reached the authors normalised

    CHOICES: ClassVar = {"encoder": ("gcn", "mlp")}
    RANGES: ClassVar = {
        "layers": (1, 64),
        "hidden": (1, 65536),
        "edge_drop": (0, 0.99),
        "column_mask": (0, 0.99),
        "epochs": (0, 10**9),
    }


class GCNEncoder(nn.Module):
    def __init__(self, features: int, settings: CCASSGSettings) -> None:
        super().__init__()
        widths = _widths(features, settings)
        self.convolutions = nn.ModuleList(Convolution(*pair) for pair in pairwise(widths))

    def forward(self, operator: Operator, x: Inputs) -> Tensor:
        h: Tensor = self.convolutions[0](operator, x)
        for convolution in self.convolutions[1:]:
            h = convolution(operator, torch.relu(h))
        return h


class MLPEncoder(nn.Module):
    """Linear layers with batch normalisation and ReLU between them, by the statistics of the batch it is given:
    the authors never switch to running ones."""

    def __init__(self, features: int, settings: CCASSGSettings) -> None:
        super().__init__()
        widths = _widths(features, settings)
        self.linears = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, track_running_stats=False) for width in widths[1:-1])

    def forward(self, operator: Operator, x: Inputs) -> Tensor:
        h: Tensor = self.linears[0](x)
        for norm, linear in zip(self.norms, self.linears[1:], strict=True):
            h = linear(torch.relu(norm(h)))
        return h


def make_encoder(features: int, settings: CCASSGSettings, seed: int) -> nn.Module:
    encoder = (GCNEncoder if settings.encoder == "gcn" else MLPEncoder)(features, settings)
    initialise(encoder, noise.generator(seed, "cca-ssg"))
    return encoder


def standardise(h: Tensor) -> Tensor:
    """Columns with mean 0 and (unbiased) standard deviation 1, N x H."""
    return (h - h.mean(0)) / h.std(0).clamp(min=SMALLEST)


def agreement_loss(first: Tensor, second: Tensor, decorrelation: float) -> Tensor:
    """The loss from the encoder's output for two views, each N x H; tr(Z_1^T Z_2) needs no H x H product."""
    z1, z2 = standardise(first), standardise(second)
    return (_decorrelate(z1) + _decorrelate(z2)) * decorrelation - (z1 * z2).sum() / len(z1)


def _decorrelate(z: Tensor) -> Tensor:
    return (z.T @ z / len(z) - torch.eye(z.shape[1], device=z.device)).square().sum()


def fit(
    graph: Graph,
    settings: CCASSGSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    encoder = make_encoder(graph.num_features, settings, seed).to(device)

    def view(number: int, epoch: int) -> Tensor:
        key = noise.derive(seed, "view", number, epoch)
        dropped = operator.drop_edges(settings.edge_drop, key) if settings.encoder == "gcn" else operator
        h: Tensor = encoder(dropped, inputs.mask_columns(settings.column_mask, key))
        return h

    return fit_encoder(
        encoder, lambda: encoder(operator, inputs), torch.optim.Adam(encoder.parameters(), lr=settings.lr),
        lambda epoch: agreement_loss(view(1, epoch), view(2, epoch), settings.decorrelation), settings,
        epochs=settings.epochs, clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def _widths(features: int, settings: CCASSGSettings) -> tuple[int, ...]:
    return (features, *(settings.hidden,) * settings.layers)


def parameters(shape: Shape, settings: CCASSGSettings) -> int:
    """d H + H, H^2 + H for every further layer, and 2 H for the norm before it in an MLP."""
    hidden = settings.hidden
    inner = hidden**2 + hidden + 2 * hidden * (settings.encoder == "mlp")
    return (shape.features + 1) * hidden + (settings.layers - 1) * inner


def operations(shape: Shape, settings: CCASSGSettings, spikes: tuple[int, ...] = ()) -> Operations:
    """An MLP moves nothing along edges."""
    widths, entries = _widths(shape.features, settings), shape.entries if settings.encoder == "gcn" else 0
    return Operations(layers_of(widths, shape.nodes, entries))


METHOD = Method("cca-ssg", "CCA-SSG", CCASSGSettings, fit, parameters, operations)
