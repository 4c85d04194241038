"""BGRL: predict a slowly moving copy of oneself from another view, without negatives (Thakoor et al., ICLR 2022).

    layer(x) = prelu(batch_norm(P x W + b))     h = layer_2(layer_1(X)) by the online encoder, t by the target encoder
    q = prelu(h V_1 + c_1) V_2 + c_2            the online side alone has this predictor
    loss = 2 - mean_i cos(q_i of view 1, t_i of view 2) - mean_i cos(q_i of view 2, t_i of view 1)

A view has shares of the undirected edges dropped and of the feature columns zeroed. The target starts from weights of
its own, gets no gradient, and after step s (0, 1, ...) of S its weights become m_s target + (1 - m_s) online, where
1 - m_s = (1 - momentum) (1 + cos(pi s / S)) / 2 falls to 0. The learning rate rises linearly over the ``warmup`` share
of the steps and then falls to 0 along half a cosine. The embedding is h, rows scaled to length 1.

Batch normalisation always uses the statistics of the graph it is given, whole. With rows that sum to 1 variances are
tiny, and running averages with the paper's decay of 0.99 would for hundreds of epochs be mostly the 1 they start from;
the authors' code weighs the last view with 0.99, which is nearly what is done here.
"""

from __future__ import annotations

import math
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

View = tuple[Operator, Inputs]


@dataclass(frozen=True)
class BGRLSettings(Settings):
    hidden: int = 256  # the authors', on three of five graphs
    embedding: int = 128  # the authors', on three of five graphs
    predictor: int = 512  # the authors'
    channel_slopes: bool = False  # a PReLU slope a channel; only the parameter counts of the SpikeGCL paper have them
    edge_drop_1: float = 0.4  # the authors' are 0.1 to 0.5, stronger in the first view
    edge_drop_2: float = 0.2
    column_mask_1: float = 0.2  # the authors' are 0.1 to 0.4
    column_mask_2: float = 0.2
    momentum: float = 0.99  # the authors'
    lr: float = 5e-4  # the authors' largest: small graphs and few epochs need it
    warmup: float = 0.1  # share of the epochs; the authors' 1000 of 10 000
    weight_decay: float = 1e-5  # the authors'
    epochs: int = 1000  # a tenth of the authors', which are hours without a GPU
    row_normalise: bool = True  # the authors'

    RANGES: ClassVar = {
        "hidden": (1, 65536),
        "embedding": (1, 65536),
        "predictor": (1, 65536),
        "edge_drop_1": (0, 0.99),
        "edge_drop_2": (0, 0.99),
        "column_mask_1": (0, 0.99),
        "column_mask_2": (0, 0.99),
        "momentum": (0, 1),
        "warmup": (0, 1),
        "epochs": (0, 10**9),
    }


class Encoder(nn.Module):
    """Two graph convolutions, each with batch normalisation and PReLU: X -> N x embedding."""

    def __init__(self, features: int, settings: BGRLSettings, rng: torch.Generator) -> None:
        super().__init__()
        widths = _widths(features, settings)
        self.convolutions = nn.ModuleList(Convolution(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, track_running_stats=False) for width in widths[1:])
        self.slopes = nn.ModuleList(nn.PReLU(width if settings.channel_slopes else 1) for width in widths[1:])
        initialise(self, rng)

    def forward(self, operator: Operator, x: Inputs) -> Tensor:
        h: Inputs | Tensor = x
        for convolution, norm, slope in zip(self.convolutions, self.norms, self.slopes, strict=True):
            h = slope(norm(convolution(operator, h)))
        assert isinstance(h, Tensor)
        return h


class Online(nn.Module):
    """What is trained: encoder and predictor."""

    def __init__(self, features: int, settings: BGRLSettings, seed: int) -> None:
        super().__init__()
        self.encoder = Encoder(features, settings, noise.generator(seed, "bgrl online"))
        self.predictor = nn.Sequential(
            Linear(settings.embedding, settings.predictor),
            nn.PReLU(),
            Linear(settings.predictor, settings.embedding),
        )
        initialise(self.predictor, noise.generator(seed, "bgrl predictor"))

    def predict(self, operator: Operator, x: Inputs) -> Tensor:
        q: Tensor = self.predictor(self.encoder(operator, x))
        return q


def make_target(features: int, settings: BGRLSettings, seed: int) -> Encoder:
    """The encoder that follows the online one, with first weights of its own and no gradients."""
    return Encoder(features, settings, noise.generator(seed, "bgrl target")).requires_grad_(False)


@torch.no_grad()
def follow(target: Encoder, online: Encoder, momentum: float) -> None:
    """Weights of the target become momentum * target + (1 - momentum) * online."""
    for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
        mine.lerp_(theirs, 1 - momentum)


def bootstrap_loss(online: Online, target: Encoder, first: View, second: View) -> Tensor:
    cosine = nn.functional.cosine_similarity
    agreement = cosine(online.predict(*first), target(*second)) + cosine(online.predict(*second), target(*first))
    return 2 - agreement.mean()


def learning_rate(step: int, settings: BGRLSettings) -> float:
    """The share of ``lr`` that step 0, 1, ... is taken with."""
    warmup = round(settings.warmup * settings.epochs)
    if step < warmup:
        return step / warmup
    return (1 + math.cos(math.pi * (step - warmup) / max(settings.epochs - warmup, 1))) / 2


def target_momentum(step: int, settings: BGRLSettings) -> float:
    """m_s: what the target keeps of itself after step s = 0, 1, ..."""
    return 1 - (1 - settings.momentum) * (1 + math.cos(math.pi * step / settings.epochs)) / 2


def fit(
    graph: Graph,
    settings: BGRLSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    online = Online(graph.num_features, settings, seed).to(device)
    target = make_target(graph.num_features, settings, seed).to(device)
    optimiser = torch.optim.AdamW(online.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate(step, settings))
    rates = ((settings.edge_drop_1, settings.column_mask_1), (settings.edge_drop_2, settings.column_mask_2))

    def view(number: int, epoch: int) -> View:
        key, (edge_drop, column_mask) = noise.derive(seed, "view", number, epoch), rates[number]
        return operator.drop_edges(edge_drop, key), inputs.mask_columns(column_mask, key)

    def after_step(epoch: int) -> None:
        schedule.step()
        follow(target, online.encoder, target_momentum(epoch - 1, settings))

    return fit_encoder(
        online, lambda: nn.functional.normalize(online.encoder(operator, inputs)), optimiser,
        lambda epoch: bootstrap_loss(online, target, view(0, epoch), view(1, epoch)), settings,
        epochs=settings.epochs, clock=clock, after_step=after_step, on_epoch=on_epoch,
    )  # fmt: skip


def _widths(features: int, settings: BGRLSettings) -> tuple[int, int, int]:
    return features, settings.hidden, settings.embedding


def parameters(shape: Shape, settings: BGRLSettings) -> int:
    """d_in d_out + d_out, 2 d_out (norm) and one or d_out slopes a layer; H p + p + 1 + p H + H for the predictor."""
    widths, inner = _widths(shape.features, settings), settings.predictor
    layers = sum(
        width_in * width_out + 3 * width_out + (width_out if settings.channel_slopes else 1)
        for width_in, width_out in pairwise(widths)
    )
    return layers + (widths[-1] + 1) * inner + 1 + (inner + 1) * widths[-1]


def operations(shape: Shape, settings: BGRLSettings, spikes: tuple[int, ...] = ()) -> Operations:
    widths = _widths(shape.features, settings)
    return Operations(layers_of(widths, shape.nodes, shape.entries))


METHOD = Method("bgrl", "BGRL", BGRLSettings, fit, parameters, operations)
