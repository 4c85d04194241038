"""Peer GNNs: one first layer per feature group, the other layers shared, all ending in the current of one neuron.

For step t with features X_t (N x c_t), layer by layer (Z the input of a layer, P the normalised adjacency):

    first layer     A = P BN(dropout(X_t)) W_t + b_t
    other layers    A = P BN(dropout(act(Z))) W + b          (W, b, BN parameters shared by all steps)
    current         I_t = A of the last layer                (N x H)

Steps are computed K at a time, side by side. Batch norm is folded into the weights: BN(Z) W = Z (s W) + 1 (o W) with
s = gamma / sqrt(var + eps), o = beta - mean s, and a constant row passes through P as ``reach`` times that row.

Statistics. In training each view uses its own (of the nodes at hand, differentiable) and moves the running averages,
torch's way: momentum 0.1, starting at mean 0 and variance 1. Codes use the running averages, so new graphs are embedded
with frozen ones. Both views move them, as in the authors' code; exact statistics of the clean graph would be tidier but
cost accuracy on bags of words, because dividing by the tiny variance of rare words amplifies noise (docs/design.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spikegcl import noise, world
from spikegcl.features import Columns, Features, block_linear, group_linear, row_linear
from spikegcl.fused import Affine, activate
from spikegcl.propagate import Operator, attend, propagate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.config import Config
    from spikegcl.groups import Groups

EPS, MOMENTUM = 1e-5, 0.1  # torch's batch norm defaults
OPERATORS = {"gcn": "gcn", "sage": "mean", "gat": "sum", "linear": "gcn"}


@dataclass(frozen=True, eq=False)
class View:
    """One look at a graph: its adjacency, its features in group order, and the key of its random choices.

    ``drop`` is the dropout rate (0 for embedding). ``kept`` may hold P X of the whole view (N x d, group order).
    Batch statistics are those of the first ``own`` nodes (None: of all).
    """

    operator: Operator
    features: Features
    columns: Columns
    key: int = 0
    drop: float = 0.0
    kept: Tensor | None = None
    own: int | None = None

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the feature columns in group order, dropout included."""
        return self.features.moments(self.columns)


class Convolution(nn.Module):
    """Weights of one layer: ``fan_in`` x H for every (stacked) group, Glorot-initialised by ``sizes``, and a bias.

    gcn    A = P z,  z = x W
    sage   A = P x W + x W_self with P the neighbourhood mean
    gat    A = attention over z = x W with scores a_self . z_i + a_neighbour . z_j (one head)
    linear A = x W: the graph is in the inputs already
    """

    def __init__(self, kind: str, sizes: list[int], channels: int, biases: int, rng: torch.Generator) -> None:
        super().__init__()
        self.kind, self.channels = kind, channels

        def glorot() -> nn.Parameter:
            blocks = [_uniform((size, channels), math.sqrt(6 / (size + channels)), rng) for size in sizes]
            return nn.Parameter(torch.cat(blocks))

        self.weight = glorot()
        self.bias = nn.Parameter(torch.zeros(biases, channels))
        if kind == "sage":
            self.weight_self = glorot()
        if kind == "gat":
            self.attention = nn.Parameter(_uniform((2, channels), math.sqrt(6 / (1 + channels)), rng))

    def weights(self) -> list[Tensor]:
        """The matrices that multiply the input: the neighbours' first."""
        return [self.weight, self.weight_self] if self.kind == "sage" else [self.weight]


class Norm(nn.Module):
    """Scale and offset of a batch norm, and the running statistics used for codes."""

    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def affine(self, mean: Tensor, var: Tensor, columns: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Scale s and offset o such that BN(x) = x s + o on ``columns``, for statistics of shape ... x columns."""
        scale = self.gamma[columns] * torch.rsqrt(var + EPS)
        return scale, self.beta[columns] - mean * scale

    @torch.no_grad()
    def observe(self, mean: Tensor, var: Tensor) -> None:
        """Move the running averages by K observations (K x width), one after the other."""
        count = len(mean)
        weight = MOMENTUM * (1 - MOMENTUM) ** torch.arange(count - 1, -1, -1, device=mean.device)
        for running, seen in ((self.mean, mean), (self.var, var)):
            running.mul_((1 - MOMENTUM) ** count).add_(weight @ seen)


class Seen:
    """Batch statistics of pieces of a graph, gathered to become those of the graph.

    Pieces of n nodes with means m and variances v make mean M = sum n m / sum n and variance sum n (v + (m - M)^2) /
    sum n, over all processes; one piece is its own result, exactly.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[Norm, int], dict[int, list[tuple[int, Tensor, Tensor]]]] = {}

    def add(self, norm: Norm, view: int, first: int, count: int, mean: Tensor, var: Tensor) -> None:
        """Statistics (K x width) of the steps from ``first`` on, of ``count`` nodes, in the view with this key."""
        for step, (m, v) in enumerate(zip(mean, var, strict=True), first):
            self._pieces.setdefault((norm, view), {}).setdefault(step, []).append((count, m.double(), v.double()))

    def combined(self) -> Iterator[tuple[Norm, list[tuple[Tensor, Tensor]]]]:
        """Every norm with mean and variance (float32, steps x width) of its views, in the order they were met."""
        found: dict[Norm, list[tuple[Tensor, Tensor]]] = {}
        for (norm, _), by_step in self._pieces.items():
            steps = [list(zip(*by_step[step], strict=True)) for step in sorted(by_step)]
            sizes = [torch.tensor(counts, dtype=torch.float64, device=m[0].device)[:, None] for counts, m, _ in steps]
            means = [torch.stack(list(m)) for _, m, _ in steps]
            total = torch.stack([size.sum() for size in sizes])[:, None]
            mean = torch.stack([(size * m).sum(0) for size, m in zip(sizes, means, strict=True)])
            world.add_up([total, mean])
            mean /= total
            spread = [
                (size * (torch.stack(list(v)) + (m - centre) ** 2)).sum(0)
                for size, m, centre, (_, _, v) in zip(sizes, means, mean, steps, strict=True)
            ]
            var = torch.stack(spread)
            world.add_up([var])
            found.setdefault(norm, []).append((mean.float(), (var / total).float()))
        yield from found.items()


class Encoder(nn.Module):
    """The peer GNNs of all steps. :meth:`currents` computes steps ``first`` to ``first + steps - 1`` of a view."""

    def __init__(self, config: Config, groups: Groups, seed: int) -> None:
        super().__init__()
        rng = noise.generator(seed, "encoder")
        self.groups, self.kind, self.channels = groups, config.encoder, config.channels
        self.activation = config.activation
        # P is applied to the features of a step, or to their product with the weights: the same result, and the one
        # that moves fewer columns wins. Products also go back through P, features have to be made dense for it.
        self.propagates_first = self.kind in ("gcn", "sage") and len(groups.order) <= groups.steps * self.channels
        self.first = Convolution(self.kind, groups.sizes.tolist(), self.channels, groups.steps, rng)
        self.shared = nn.ModuleList(
            Convolution(self.kind, [self.channels], self.channels, 1, rng) for _ in range(config.layers - 1)
        )
        self.input_norm = Norm(len(groups.order)) if config.batch_norm else None
        self.norms = nn.ModuleList(Norm(self.channels) for _ in range(config.layers - 1) if config.batch_norm)
        self.seen: Seen | None = None  # where statistics are gathered; without it they move the averages at once

    @property
    def operator_kind(self) -> str:
        return OPERATORS[self.kind]

    @property
    def hops(self) -> int:
        """How far away a node can be and still have a say in a current."""
        return 0 if self.kind == "linear" else 1 + len(self.shared)

    def currents(self, view: View, first: int, steps: int) -> Affine:
        """Currents of K = ``steps`` steps, N x K*H, still to be shifted (:class:`Affine`).

        In training mode with the statistics of the view (which move the running averages), else with the running ones.
        """
        return self._layers(view, first, steps, len(self.shared))

    def watch(self, view: View, first: int, steps: int) -> None:
        """Move the running averages as :meth:`currents` does in training mode, without the last layer."""
        before = max(len(self.shared) - 1, 0)
        current = self._layers(view, first, steps, before)
        if len(self.shared):
            self._inputs(before, current, view, first, steps)

    def _layers(self, view: View, first: int, steps: int, shared: int) -> Affine:
        """The result of the first layer and the first ``shared`` others."""
        current = self._first_layer(view, first, steps)
        for layer in range(shared):
            inputs = self._inputs(layer, current, view, first, steps)
            current = self._shared_layer(self.shared[layer], view.operator, *inputs, steps)  # type: ignore[arg-type]
        return current

    def _inputs(
        self, layer: int, current: Affine, view: View, first: int, steps: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What a shared layer reads: activations, and the scale and offset of their batch norm if there is one."""
        keys = [noise.derive(view.key, "hidden", layer, first + k) for k in range(steps)]
        h, mean, var = activate(current, self.activation, keys, view.drop, self.channels, view.operator.names, view.own)
        if not len(self.norms):
            return h, None, None
        norm: Norm = self.norms[layer]  # type: ignore[assignment]
        if self.training:
            mean, var = mean.view(steps, -1), var.view(steps, -1)
            self._observe(norm, view, first, mean, var)
        else:
            mean, var = norm.mean.expand(steps, -1), norm.var.expand(steps, -1)
        return h, *norm.affine(mean, var)

    def _observe(self, norm: Norm, view: View, first: int, mean: Tensor, var: Tensor) -> None:
        if self.seen is None:
            norm.observe(mean, var)
        else:
            count = view.operator.num_nodes if view.own is None else view.own
            self.seen.add(norm, view.key, first, count, mean.detach(), var.detach())

    def observe(self, seen: Seen) -> None:
        """Move the running averages by what was seen: all steps of one view, then of the next, as the authors do."""
        for norm, views in seen.combined():
            for mean, var in views:
                norm.observe(mean, var)

    def _first_layer(self, view: View, first: int, steps: int) -> Affine:
        convolution, bounds = self.first, self.groups.bounds
        low, high = int(bounds[first]), int(bounds[first + steps])
        own = bounds[first : first + steps + 1] - low
        scale = offset = None
        if self.input_norm is not None:
            mean, var = view.moments if self.training else (self.input_norm.mean, self.input_norm.var)
            if self.training and first == 0:
                self._observe(self.input_norm, view, 0, mean[None], var[None])
            scale, offset = self.input_norm.affine(mean[low:high], var[low:high], slice(low, high))
        weights = [_rows(w, low, high) for w in convolution.weights()]
        shifts = [_group_sums(w, offset, own, steps) for w in weights]
        weights = [w if scale is None else w * scale[:, None] for w in weights]
        bias = convolution.bias[first : first + steps].reshape(-1)
        if self.propagates_first:
            gathered = (
                None if view.kept is not None and len(weights) == 1 else view.features.gather(view.columns, low, high)
            )
            spread = view.kept[:, low:high] if view.kept is not None else propagate(view.operator, gathered)  # type: ignore[arg-type]
            parts = [block_linear(spread, weights[0], own)]
            if len(weights) == 2:
                parts.append(block_linear(gathered, weights[1], own))  # type: ignore[arg-type]
        else:
            parts = [group_linear(view.features, view.columns, self.groups, first, steps, w) for w in weights]
            if self.kind == "gat":
                parts[0] = self._attend(convolution, view.operator, parts[0], shifts[0])
            elif self.kind != "linear":
                parts[0] = propagate(view.operator, parts[0])
        return self._combine(view.operator, parts, shifts, bias)

    def _shared_layer(
        self,
        convolution: Convolution,
        operator: Operator,
        h: Tensor,
        scale: Tensor | None,
        offset: Tensor | None,
        steps: int,
    ) -> Affine:
        width = self.channels
        bounds = range(0, (steps + 1) * width, width)
        spread = propagate(operator, h) if self.kind in ("gcn", "sage") else h
        parts, shifts = [], []
        for weight, x in zip(convolution.weights(), (spread, h), strict=False):
            stacked = weight.expand(steps, -1, -1) if scale is None else weight * scale[:, :, None]
            parts.append(block_linear(x, stacked.reshape(steps * width, width), bounds))
            zero = weight.new_zeros(steps * width)
            shifts.append(zero if offset is None else (offset[:, :, None] * weight).sum(1).reshape(-1))
        if self.kind == "gat":
            parts = [self._attend(convolution, operator, parts[0], shifts[0])]
        return self._combine(operator, parts, shifts, convolution.bias.expand(steps, -1).reshape(-1))

    def _attend(self, convolution: Convolution, operator: Operator, z: Tensor, shift: Tensor) -> Tensor:
        out = []
        for part, constant in zip(z.split(self.channels, 1), shift.split(self.channels), strict=True):
            mine, other = ((part + constant)[:, None] * convolution.attention).sum(2).unbind(1)
            out.append(attend(operator, part.contiguous(), mine, other))
        return torch.cat(out, 1)

    def _combine(self, operator: Operator, parts: list[Tensor], shifts: list[Tensor], bias: Tensor) -> Affine:
        if self.kind == "sage":
            return Affine(parts[0] + parts[1], operator.reach, shifts[0], bias + shifts[1])
        reach = operator.reach if self.kind == "gcn" else torch.ones_like(operator.reach)
        return Affine(parts[0], reach, shifts[0], bias)


def _uniform(shape: tuple[int, int], bound: float, rng: torch.Generator) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound, generator=rng)


def _rows(parameter: Tensor, low: int, high: int) -> Tensor:
    """Rows of a parameter; their gradient is added to those rows of the parameter's.

    Plain slicing would fill and add a gradient of the parameter's full size for every chunk of steps.
    """
    if not torch.is_grad_enabled():
        return parameter[low:high]
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    rows = parameter.detach()[low:high].requires_grad_()
    rows.grad = parameter.grad[low:high]
    return rows


def _group_sums(weight: Tensor, offset: Tensor | None, own: object, steps: int) -> Tensor:
    """The constant row that the offsets of a group's columns add to its product: (K*H)."""
    if offset is None:
        return weight.new_zeros(steps * weight.shape[1])
    return row_linear(offset, weight, own)  # type: ignore[arg-type]
