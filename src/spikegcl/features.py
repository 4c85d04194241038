"""Products with the features of a graph, a group of columns for every step, without making sparse ones dense.

As in propagate.py every product has two forms: the numba kernels on the CPU, plain torch elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spikegcl import kernels, noise
from spikegcl.propagate import fused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.groups import Groups

# In a product with fewer columns than this the library rounds a row differently depending on where the row stands.
NARROW = 16
FEW = 16  # ... and in one with fewer rows it rounds differently altogether: both are padded
MOMENT_FLOATS = 2**26  # entries whose mean is taken at once


@dataclass(frozen=True, eq=False)
class Columns:
    """The feature columns of one view: column ``order[p]`` of the graph stands at position p, dropped with ``drop``."""

    order: NDArray[np.int64]
    key: int = 0
    drop: float = 0.0

    @property
    def choice(self) -> tuple[int, int, np.float32]:
        """Key, hash limit and scale, as the kernels want them."""
        return self.key, noise.cutoff(self.drop), np.float32(1 / (1 - self.drop))

    def read_all(self, width: int, bounds: NDArray[np.int64], first: int) -> bool:
        """Whether every group is all columns as they are; ``bounds`` are those of groups from place ``first`` on."""
        if self.drop or (np.diff(bounds) != width).any():
            return False
        own = self.order[first : first + bounds[-1]].reshape(-1, width)
        return bool((own == np.arange(width)).all())


class ColumnMoments:
    """Mean and mean square (float64, d) of every feature column, over all nodes; taken when first asked for."""

    def __init__(self, features: Any) -> None:
        self._features = features

    @cached_property
    def mean(self) -> Tensor:
        return self._mean_of(lambda rows: rows)

    @cached_property
    def square(self) -> Tensor:
        return self._mean_of(lambda rows: rows.power(2) if sp.issparse(rows) else np.square(rows, dtype=np.float64))

    def _mean_of(self, function: Callable[[Any], Any]) -> Tensor:
        """By blocks of rows, which a memory-mapped matrix needs; most graphs are one block."""
        count, width = self._features.shape
        rows = max(1, MOMENT_FLOATS // width)
        if count <= rows:
            mean = function(self._features).mean(0, dtype=np.float64)
        else:
            blocks = (function(self._features[low : low + rows]) for low in range(0, count, rows))
            mean = sum(np.asarray(block.sum(0, dtype=np.float64)) for block in blocks) / count
        return torch.from_numpy(np.asarray(mean).ravel())


class Features:
    """Features prepared for products, stored by column: dense d x N, or CSC when sparse.

    Knows the column means and second moments, from which the batch statistics of any dropped view follow in closed
    form: dropping with probability p and scaling by 1 / (1 - p) keeps the mean and divides the second moment by 1 - p.
    Node ``order[i]`` of the graph becomes row i, as in :func:`make_operator`; these may be some of the nodes, the
    moments are then still those of all. ``names`` are the numbers by which rows take part in random choices.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device | str = "cpu",
        order: NDArray[np.int64] | None = None,
        names: NDArray[np.int64] | None = None,
        moments: ColumnMoments | None = None,
    ) -> None:
        features = graph.features
        self.shape: tuple[int, int] = features.shape if order is None else (len(order), features.shape[1])
        self.names = np.arange(self.shape[0]) if names is None else names
        self.device = torch.device(device)
        self.sparse: Any = None
        self.dense: Tensor | None = None
        if graph.is_sparse:
            self.sparse = (features if order is None else features[order]).tocsc()
        else:
            self.dense = torch.from_numpy(np.ascontiguousarray(features.T if order is None else features[order].T)).to(
                device
            )
        self.whole = moments or ColumnMoments(features)

    @property
    def fused(self) -> bool:
        """Whether the CPU kernels handle these features."""
        return fused(self.device)

    def moments(self, columns: Columns) -> tuple[Tensor, Tensor]:
        """Mean and biased variance (float32, d) of the columns in their order, dropout included in expectation."""
        order = torch.from_numpy(columns.order)
        mean, square = self.whole.mean[order], self.whole.square[order]
        var = (square / (1 - columns.drop) - mean**2).clamp(min=0)
        return mean.float().to(self.device), var.float().to(self.device)

    def gather(self, columns: Columns, low: int, high: int) -> Tensor:
        """Positions ``low`` to ``high`` of the view as a dense N x (high - low) tensor, dropped and scaled."""
        order = columns.order[low:high]
        if self.fused:
            if self.dense is None:
                out = torch.zeros(self.shape[0], len(order))
                kernels.scatter_columns(*_arrays(self.sparse), order, self.names, *columns.choice, out.numpy())
            else:
                out = torch.empty(self.shape[0], len(order))
                kernels.take_columns(self.dense.numpy(), order, self.names, *columns.choice, out.numpy())
            return out
        picked = (
            self.dense[torch.from_numpy(order).to(self.device)].T
            if self.dense is not None
            else torch.from_numpy(self.sparse[:, order].toarray()).to(self.device)
        )
        nodes = torch.from_numpy(self.names).to(self.device)[:, None]
        kept = noise.keep(columns.key, nodes, torch.from_numpy(order).to(self.device)[None], columns.drop)
        return picked * kept / (1 - columns.drop)


def _arrays(matrix: Any) -> tuple[Any, Any, Any]:
    return matrix.indptr, matrix.indices, matrix.data


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, features: Features, columns: Columns, low: int, step_of: Any) -> Tensor:
        count, width = features.shape[0], weight.shape[1]
        order = columns.order[low : low + len(weight)]
        entries = int((features.sparse.indptr[order + 1] - features.sparse.indptr[order]).sum())
        starts = np.zeros(count + 2, np.int64)
        positions, values = np.empty(entries, np.int32), np.empty(entries, np.float32)
        choice = features.names, *columns.choice
        kernels.rows_of_columns(*_arrays(features.sparse), order, *choice, starts, positions, values)
        out = torch.empty(count, (int(step_of[-1]) + 1) * width)
        kernels.rows_times_weight(starts, positions, values, step_of, weight.detach().numpy(), out.numpy())
        ctx.call = (*_arrays(features.sparse), order, step_of)
        ctx.choice, ctx.shape = choice, weight.shape
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out = torch.empty(ctx.shape)
        kernels.columns_times_grad(*ctx.call, grads[0].contiguous().numpy(), *ctx.choice, out.numpy())
        return out, None, None, None, None


def group_linear(
    features: Features, columns: Columns, groups: Groups, first: int, steps: int, weight: Tensor
) -> Tensor:
    """X_t W_t for the steps t = first .. first + steps - 1, side by side: N x steps*H.

    ``weight`` stacks the W_t of these steps. Sparse features are never made dense on the CPU.
    """
    low, high = int(groups.bounds[first]), int(groups.bounds[first + steps])
    if features.fused and features.dense is None:
        step_of = groups.step_of[low:high] - np.int32(first)
        out: Tensor = _SparseLinear.apply(weight, features, columns, low, step_of)  # type: ignore[no-untyped-call]
        return out
    bounds = groups.bounds[first : first + steps + 1] - low
    if features.dense is not None and columns.read_all(features.shape[1], bounds, low):
        shared: Tensor = _BlockLinear.apply(features.dense.T, weight, bounds.tolist(), FEW, True)  # type: ignore[no-untyped-call]
        return shared
    return block_linear(features.gather(columns, low, high), weight, bounds)


class _BlockLinear(torch.autograd.Function):
    """With ``shared`` every block is all of x, which has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bounds: Sequence[int], few: int, shared: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bounds, ctx.shared = bounds, shared
        width, rows, pad = weight.shape[1], len(x), torch.nn.functional.pad
        out = x.new_empty(x.shape[0], (len(bounds) - 1) * width)
        for k in range(len(bounds) - 1):
            block, own = slice(bounds[k], bounds[k + 1]), out[:, k * width : (k + 1) * width]
            if width < NARROW or rows < few:
                wide = pad(weight[block], (0, max(0, NARROW - width)))
                tall = pad(x if shared else x[:, block], (0, 0, 0, max(0, few - rows)))
                own.copy_((tall @ wide)[:rows, :width])
            else:
                torch.mm(x if shared else x[:, block], weight[block], out=own)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        grad, bounds, width = grads[0], ctx.bounds, weight.shape[1]
        x_grad = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        weight_grad = torch.empty_like(weight)
        for k in range(len(bounds) - 1):
            block, own = slice(bounds[k], bounds[k + 1]), grad[:, k * width : (k + 1) * width]
            rows = _active_rows(own)
            part = x if ctx.shared else x[:, block]
            if rows is None:
                torch.mm(part.T, own, out=weight_grad[block])
                if x_grad is not None:
                    torch.mm(own, weight[block].T, out=x_grad[:, block])
            else:
                own = own.index_select(0, rows)
                torch.mm(part.index_select(0, rows).T, own, out=weight_grad[block])
                if x_grad is not None:
                    x_grad[:, block].zero_().index_copy_(0, rows, own @ weight[block].T)
        return x_grad, weight_grad, None, None, None


def _active_rows(grad: Tensor) -> Tensor | None:
    """Rows with a gradient, if they are few enough to be worth picking out: a ranking loss is silent on many nodes."""
    if not fused(grad):
        return None
    active = np.empty(len(grad), np.bool_)
    kernels.nonzero_rows(grad.numpy(), active)
    rows = np.flatnonzero(active)
    return torch.from_numpy(rows) if len(rows) < 0.75 * len(grad) else None


def block_linear(x: Tensor, weight: Tensor, bounds: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """A block-diagonal linear map: block k of x (columns bounds[k] to bounds[k+1]) times its rows of ``weight``.

    x is N x bounds[-1], weight bounds[-1] x H; the result is N x K*H with the blocks side by side. A row's result does
    not depend on the other rows.
    """
    out: Tensor = _BlockLinear.apply(x, weight, [int(b) for b in bounds], FEW, False)  # type: ignore[no-untyped-call]
    return out


def row_linear(row: Tensor, weight: Tensor, bounds: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """:func:`block_linear` of a single row (bounds[-1]): K*H."""
    out: Tensor = _BlockLinear.apply(row[None], weight, [int(b) for b in bounds], 1, False)  # type: ignore[no-untyped-call]
    return out[0]
