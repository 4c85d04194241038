"""GRACE: a node's two views agree, against all other nodes of both views (Zhu et al., 2020).

    h = act(P act(P X W_1 + b_1) W_2 + b_2)          u, v = elu(h V_1 + c_1) V_2 + c_2 of two views, rows of length 1
    loss = (1 / 2N) sum_i  log D(u_i) + log D(v_i) - 2 u_i . v_i / tau
    D(u_i) = sum_k exp(u_i . v_k / tau) + sum_{k != i} exp(u_i . u_k / tau),   D(v_i) likewise

A view has shares of the undirected edges dropped and of the feature columns zeroed. With u and v stacked as the rows of
z (2N x H), D_i is the sum over every other row: one symmetric matrix of which half is computed, 2 N^2 numbers. They are
kept for the gradient, which takes two thirds of the time that computing them again would. Where they exceed
``memory_mb``, and where ``sample`` asks for it, an epoch takes the loss of that many nodes, drawn anew and each other's
negatives; the encoder always sees the whole graph. The embedding is h, rows scaled to length 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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

BLOCK = 1024  # rows and columns of similarities computed at a time: four megabytes stay in the cache


@dataclass(frozen=True)
class GRACESettings(Settings):
    hidden: int = 256  # the authors', on three of four graphs; the first layer is twice as wide
    projection: int = 256  # the authors': as wide as the embedding
    activation: str = "relu"  # the authors', on three of four graphs
    temperature: float = 0.5  # tau; between the authors' 0.4 and 0.9
    edge_drop_1: float = 0.2  # as on Cora: two views of unequal strength
    edge_drop_2: float = 0.4
    column_mask_1: float = 0.3
    column_mask_2: float = 0.4
    lr: float = 1e-3  # the authors', on three of four graphs
    weight_decay: float = 1e-5  # the authors'
    epochs: int = 200  # the authors', on the two smaller graphs
    row_normalise: bool = True  # the authors'
    sample: int = 0  # nodes whose loss an epoch takes; 0: all whose similarities fit memory_mb
    memory_mb: int = 4096  # for the similarities of an epoch: up to 23 170 nodes

    CHOICES: ClassVar = {"activation": ("relu", "prelu")}
    RANGES: ClassVar = {
        "hidden": (1, 65536),
        "projection": (1, 65536),
        "temperature": (0.02, 100),
        "edge_drop_1": (0, 0.99),
        "edge_drop_2": (0, 0.99),
        "column_mask_1": (0, 0.99),
        "column_mask_2": (0, 0.99),
        "epochs": (0, 10**9),
        "sample": (0, 10**9),
        "memory_mb": (1, 10**9),
    }


class GRACE(nn.Module):
    """Encoder (two convolutions, one activation for both) and projector."""

    def __init__(self, features: int, settings: GRACESettings, seed: int) -> None:
        super().__init__()
        self.first = Convolution(features, 2 * settings.hidden)
        self.second = Convolution(2 * settings.hidden, settings.hidden)
        self.activation = nn.PReLU() if settings.activation == "prelu" else nn.ReLU()
        self.inner = Linear(settings.hidden, settings.projection)
        self.outer = Linear(settings.projection, settings.hidden)
        initialise(self, noise.generator(seed, "grace"))

    def encode(self, operator: Operator, x: Inputs) -> Tensor:
        h: Tensor = self.activation(self.second(operator, self.activation(self.first(operator, x))))
        return h

    def project(self, h: Tensor) -> Tensor:
        projected: Tensor = self.outer(nn.functional.elu(self.inner(h)))
        return projected


class _LogSums(torch.autograd.Function):
    """log D_i = log sum_{k != i} e_ik with e_ik = exp(z_i . z_k / tau): n x H -> n.

    With w_i the incoming gradient divided by D_i, the gradient of z_i is sum_k e_ik (w_i + w_k) z_k / tau.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float) -> Tensor:
        scaled, sums, kept = z / temperature, z.new_zeros(len(z)), []
        for rows, columns in _upper_blocks(len(z)):
            e = (scaled[rows] @ z[columns].T).exp_()
            if rows == columns:
                e.fill_diagonal_(0)
            else:
                sums[columns] += e.sum(0)
            sums[rows] += e.sum(1)
            kept.append(e)
        ctx.save_for_backward(scaled, sums, *kept)
        return sums.log()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scaled, sums, *kept = ctx.saved_tensors
        weight, gradient = grads[0] / sums, torch.zeros_like(scaled)
        for (rows, columns), e in zip(_upper_blocks(len(scaled)), kept, strict=True):
            slope = e * (weight[rows, None] + weight[columns])
            gradient[rows].addmm_(slope, scaled[columns])
            if rows != columns:
                gradient[columns].addmm_(slope.T, scaled[rows])
        return gradient, None


def _upper_blocks(count: int) -> list[tuple[slice, slice]]:
    """Pairs of blocks (rows, columns) on and above the diagonal of a count x count matrix."""
    blocks = [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]
    return [(rows, columns) for number, rows in enumerate(blocks) for columns in blocks[number:]]


def contrast_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The loss from the projections of the same nodes in two views, each n x H, of any length."""
    u, v = nn.functional.normalize(first), nn.functional.normalize(second)
    log_sums: Tensor = _LogSums.apply(torch.cat([u, v]), temperature)  # type: ignore[no-untyped-call]
    return log_sums.mean() - (u * v).sum(1).mean() / temperature


def settle(settings: GRACESettings, nodes: int) -> GRACESettings:
    """``sample`` made definite for a graph: as asked, but no more than there are or than fit the memory."""
    fitting = math.isqrt(settings.memory_mb * 2**20 // 8)
    return settings.replace(sample=min(settings.sample or nodes, nodes, fitting))


def fit(
    graph: Graph,
    settings: GRACESettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock, count = Clock(), graph.num_nodes
    settings = settle(settings, count)
    exact = settings.sample == count
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = GRACE(graph.num_features, settings, seed).to(device)
    rates = ((settings.edge_drop_1, settings.column_mask_1), (settings.edge_drop_2, settings.column_mask_2))

    def project(number: int, epoch: int) -> Tensor:
        key, (edge_drop, column_mask) = noise.derive(seed, "view", number, epoch), rates[number]
        h = model.encode(operator.drop_edges(edge_drop, key), inputs.mask_columns(column_mask, key))
        drawn = torch.randperm(count, generator=noise.generator(seed, "sample", epoch))[: settings.sample]
        return model.project(h if exact else h[drawn.to(device)])

    note = "exact loss" if exact else f"sampled negatives: {settings.sample} of {count} nodes, drawn every epoch"
    return fit_encoder(
        model, lambda: nn.functional.normalize(model.encode(operator, inputs)),
        torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay),
        lambda epoch: contrast_loss(project(0, epoch), project(1, epoch), settings.temperature), settings,
        epochs=settings.epochs, clock=clock, on_epoch=on_epoch, notes=(note,),
    )  # fmt: skip


def parameters(shape: Shape, settings: GRACESettings) -> int:
    """2 d H + 2 H + 2 H^2 + H (encoder) + H p + p + p H + H (projector), and 1 for a PReLU."""
    hidden, inner = settings.hidden, settings.projection
    encoder = (shape.features + 1) * 2 * hidden + (2 * hidden + 1) * hidden + (settings.activation == "prelu")
    return encoder + (hidden + 1) * inner + (inner + 1) * hidden


def operations(shape: Shape, settings: GRACESettings, spikes: tuple[int, ...] = ()) -> Operations:
    widths = (shape.features, 2 * settings.hidden, settings.hidden)
    return Operations(layers_of(widths, shape.nodes, shape.entries))


METHOD = Method("grace", "GRACE", GRACESettings, fit, parameters, operations)
