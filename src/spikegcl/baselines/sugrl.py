"""SUGRL: a node's features stay closer to its neighbourhood than to other nodes, within bounds (Mo et al., AAAI 2022).

    anchor      h = MLP(dropout(X))
    positives   s = P dropout(h)          n_i = mean of h over NEIGHBOURS draws from node i and its neighbours
    negatives   h[order_k], k = 1 .. K: the anchors in random order

With d(., .) the Euclidean distance of each node's two vectors (N values) and [.]_+ = max(., 0)

    loss = sum_k  structural * mean [d(h, s) - d(h, h[order_k]) + margin]_+
                + neighbour * mean [d(h, n) - d(h, h[order_k]) + margin]_+
                + upper / K * sum [d(h, h[order_k]) - d(h, s) - margin - slack]_+

where the last term sends no gradient through d(h, s), and is a mean if ``upper_mean`` says so. There is no view,
discriminator or projector. The embedding is P MLP(X), rows scaled to length 1. The authors' program loads a shipped
checkpoint after every step unless told not to; this is the method without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.common import Linear, fit_encoder, initialise
from spikegcl.baselines.inputs import Inputs, dropout, make_inputs
from spikegcl.energy import Layer, Operations, layers_of
from spikegcl.propagate import Operator, make_operator, propagate
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

NEIGHBOURS = 5  # the authors'
ANCHOR_DROPOUT = 0.2  # the authors', before propagation
TINY = 1e-6  # added to differences, so that the distance of equal vectors has a gradient


@dataclass(frozen=True)
class SUGRLSettings(Settings):
    hidden: int = 512  # the authors'; 0 leaves one linear layer, as they have it on CiteSeer
    embedding: int = 128  # the authors'
    dropout: float = 0.2  # of features; the middle of the authors' 0.1 to 0.4
    structural: float = 10.0  # the authors', on Cora and the OGB graphs
    neighbour: float = 10.0  # the authors' always equals structural
    upper: float = 1.0  # the authors', on all graphs but Computers
    upper_mean: bool = False  # the authors average the last term over nodes on the OGB graphs only
    margin: float = 0.8  # the authors', on the smaller graphs
    slack: float = 0.2  # the authors', on Cora
    negatives: int = 4  # K; the authors', on Cora
    lr: float = 0.005  # the authors', on the smaller graphs
    weight_decay: float = 1e-4  # the authors', on four of seven graphs
    epochs: int = 500  # between the authors' 100 and 1000
    row_normalise: bool = True  # the authors'

    RANGES: ClassVar = {
        "hidden": (0, 65536),
        "embedding": (1, 65536),
        "dropout": (0, 0.99),
        "negatives": (1, 1024),
        "epochs": (0, 10**9),
    }


class SUGRL(nn.Module):
    """The MLP that makes anchors: one hidden layer with ReLU, or none."""

    def __init__(self, features: int, settings: SUGRLSettings, seed: int) -> None:
        super().__init__()
        widths = _widths(features, settings)
        self.linears = nn.ModuleList(Linear(*pair) for pair in pairwise(widths))
        initialise(self, noise.generator(seed, "sugrl"))

    def forward(self, x: Inputs) -> Tensor:
        h: Tensor = self.linears[0](x)
        for linear in self.linears[1:]:
            h = linear(torch.relu(h))
        return h


def distance(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distance of each row of x to the same row of y: N x D, N x D -> N."""
    length: Tensor = torch.linalg.vector_norm(x - y + TINY, dim=1)
    return length


def margin_loss(
    anchor: Tensor, structural: Tensor, neighbour: Tensor, orders: Iterable[Tensor], settings: SUGRLSettings
) -> Tensor:
    """The loss of anchors and positives (each N x D) against anchors in the given orders (each int64, N)."""
    to_structural, to_neighbour = distance(anchor, structural), distance(anchor, neighbour)
    bound = to_structural.detach() + settings.margin + settings.slack
    upper = settings.upper / settings.negatives / (len(anchor) if settings.upper_mean else 1)
    total = anchor.new_zeros(())
    for order in orders:
        to_negative = distance(anchor, anchor.index_select(0, order))
        total = total + settings.structural * torch.relu(to_structural - to_negative + settings.margin).mean()
        total = total + settings.neighbour * torch.relu(to_neighbour - to_negative + settings.margin).mean()
        total = total + upper * torch.relu(to_negative - bound).sum()
    return total


def draw_neighbours(operator: Operator, rng: torch.Generator) -> Tensor:
    """NEIGHBOURS stored entries of every row of P (self-loops included), with replacement: int64, N x NEIGHBOURS.

    The authors walk through each row in a fixed order instead.
    """
    share = torch.rand(operator.num_nodes, NEIGHBOURS, generator=rng, dtype=torch.float64).to(operator.indptr.device)
    place = operator.indptr[:-1, None] + (share * operator.indptr.diff()[:, None]).long()
    return operator.indices[place].long()


def fit(
    graph: Graph,
    settings: SUGRLSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = SUGRL(graph.num_features, settings, seed).to(device)

    def loss(epoch: int) -> Tensor:
        anchor = model(inputs.dropout(settings.dropout, noise.derive(seed, "features", epoch)))
        structural = propagate(operator, dropout(anchor, ANCHOR_DROPOUT, noise.derive(seed, "anchors", epoch)))
        drawn = draw_neighbours(operator, noise.generator(seed, "neighbours", epoch))
        neighbour = nn.functional.embedding_bag(drawn, anchor, mode="mean")
        rng = noise.generator(seed, "negatives", epoch)
        orders = (torch.randperm(len(anchor), generator=rng).to(device) for _ in range(settings.negatives))
        return margin_loss(anchor, structural, neighbour, orders, settings)

    return fit_encoder(
        model, lambda: nn.functional.normalize(propagate(operator, model(inputs))),
        torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay), loss, settings,
        epochs=settings.epochs, clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def _widths(features: int, settings: SUGRLSettings) -> tuple[int, ...]:
    return (features, *filter(None, (settings.hidden,)), settings.embedding)


def parameters(shape: Shape, settings: SUGRLSettings) -> int:
    """d a + a + a b + b for layers of width a and b, d b + b for one layer."""
    widths = _widths(shape.features, settings)
    return sum((wide + 1) * narrow for wide, narrow in pairwise(widths))


def operations(shape: Shape, settings: SUGRLSettings, spikes: tuple[int, ...] = ()) -> Operations:
    """Products of the MLP; only its output travels along the edges."""
    widths = _widths(shape.features, settings)
    layers = layers_of(widths, shape.nodes, 0)
    return Operations((*layers, Layer("propagation", aggregation=shape.entries * settings.embedding)))


METHOD = Method("sugrl", "SUGRL", SUGRLSettings, fit, parameters, operations)
