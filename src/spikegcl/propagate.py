"""Products with the graph and with its features; the only file that knows sparse layouts.

The normalised adjacency P is computed once a view and applied to many columns at once. Every product has two forms
that the tests hold to the same numbers: the numba kernels on the CPU, plain torch elsewhere.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from spikegcl import kernels, noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.groups import Groups

# In a product with fewer columns than this the library rounds a row differently depending on where the row stands.
NARROW = 16
FEW = 16  # ... and in one with fewer rows it rounds differently altogether: both are padded
MOMENT_FLOATS = 2**26  # entries whose mean is taken at once

_kernels_on = True


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Inside this context nothing uses the CPU kernels: what other devices run, for tests and comparisons."""
    global _kernels_on
    before, _kernels_on = _kernels_on, False
    try:
        yield
    finally:
        _kernels_on = before


def fused(x: Tensor) -> bool:
    """Whether the CPU kernels handle this tensor."""
    return _kernels_on and x.device.type == "cpu"


# --------------------------------------------------------------------------------------------------- adjacency


@dataclass(frozen=True, eq=False)
class Operator:
    """A normalised adjacency P (N x N, CSR) of one view.

    ``gcn``        P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I (symmetric)
    ``symmetric``  P = D^-1/2 A D^-1/2, zero rows for isolated nodes
    ``mean``       P = D^-1 A, zero rows for isolated nodes (SAGE)
    ``sum``        P = A + I, structure only (GAT computes its own values)

    ``values`` (2E + N or 2E) belong to P, ``values_t`` to its transpose on the same symmetric pattern.
    ``reach`` (N) is P times the all-ones vector: how much of a constant arrives at each node.
    ``cut`` says where the rows stand in a larger graph, if they were taken from one (:func:`cut_operator`).
    """

    kind: str
    indptr: Tensor
    indices: Tensor
    weights: Tensor
    values: Tensor
    values_t: Tensor
    reach: Tensor
    cut: Cut | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def rows(self) -> Tensor:
        """Row index of every stored edge (int64)."""
        count = torch.arange(self.num_nodes, device=self.indptr.device)
        return torch.repeat_interleave(count, self.indptr.diff())

    @cached_property
    def names(self) -> NDArray[np.int64]:
        """The numbers (N) by which rows take part in random choices: those of the graph they were cut from."""
        return np.arange(self.num_nodes) if self.cut is None else self.cut.nodes

    def drop_edges(self, rate: float, key: int) -> Operator:
        """P of the graph without a random share ``rate`` of its undirected edges; degrees follow, self-loops stay."""
        if rate == 0:
            return self
        if fused(self.values):
            kept = torch.empty_like(self.weights)
            kernels.keep_edges(
                self.indptr.numpy(), self.indices.numpy(), self.names, key, noise.cutoff(rate), kept.numpy()
            )
        else:
            names = torch.from_numpy(self.names).to(self.indices.device)
            i, j = names[self.rows], names[self.indices.long()]
            kept = (noise.keep(key, torch.minimum(i, j), torch.maximum(i, j), rate) | (i == j)).float()
        return _normalise(self.kind, self.indptr, self.indices, self.weights * kept, self.cut, rate, key)


@dataclass(frozen=True, eq=False)
class Cut:
    """Rows of A, with ``loops`` of A + I, that were taken from a graph: those of ``nodes`` (int64)."""

    graph: Graph
    nodes: NDArray[np.int64]
    loops: bool

    def degrees(self, rate: float = 0.0, key: int = 0) -> Tensor:
        """Row sums in the whole graph, without the edges that :meth:`Operator.drop_edges` drops (float32)."""
        out = torch.empty(len(self.nodes))
        kernels.kept_degrees(*_csr(self.graph), self.nodes, self.loops, key, noise.cutoff(rate), out.numpy())
        return out

    def rows(self, place: NDArray[np.int32], inner: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row starts, columns and weights; columns are renumbered by ``place``, see :func:`kernels.cut_rows`."""
        indptr, indices, weights = _csr(self.graph)
        room = int((indptr[self.nodes + 1] - indptr[self.nodes]).sum()) + len(self.nodes)
        starts, columns, values = (
            np.empty(len(self.nodes) + 1, np.int64),
            np.empty(room, np.int32),
            np.empty(room, "f4"),
        )
        kernels.cut_rows(indptr, indices, weights, self.nodes, inner, self.loops, place, starts, columns, values)
        stored = int(starts[-1])
        return torch.from_numpy(starts), torch.from_numpy(columns[:stored]), torch.from_numpy(values[:stored])


def _csr(graph: Graph) -> tuple[Any, Any, Any]:
    """The arrays of a graph as the kernels want them: weights that are all 1 stay away."""
    return graph.indptr, graph.indices, np.empty(0, np.float32) if graph.weights is None else graph.weights


def _has_loops(kind: str) -> bool:
    return kind not in ("mean", "symmetric")


def local_order(graph: Graph) -> NDArray[np.int64]:
    """An order of the nodes in which neighbours stand close (reverse Cuthill-McKee): products then miss less cache."""
    order: NDArray[np.int64] = reverse_cuthill_mckee(graph.adjacency, symmetric_mode=True).astype(np.int64)
    return order


def make_operator(
    graph: Graph,
    kind: str = "gcn",
    device: torch.device | str = "cpu",
    order: NDArray[np.int64] | None = None,
) -> Operator:
    """Normalise the adjacency of ``graph`` once; node ``order[i]`` of the graph becomes row i.

    Every row keeps its entries in the graph's own order, so a product adds the same numbers in the same sequence
    whatever ``order`` is, and its result is the same bit for bit.
    """
    adjacency = graph.adjacency
    if _has_loops(kind):
        adjacency = sp.csr_array(adjacency + sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr"))
        adjacency.sort_indices()
    if order is not None:
        adjacency = adjacency[order]
        adjacency.indices = np.argsort(order)[adjacency.indices]
    indptr = torch.from_numpy(adjacency.indptr.astype(np.int64)).to(device)
    indices = torch.from_numpy(adjacency.indices.astype(np.int32)).to(device)
    weights = torch.from_numpy(np.array(adjacency.data, dtype=np.float32)).to(device)
    return _normalise(kind, indptr, indices, weights)


def cut_operator(
    graph: Graph, nodes: NDArray[np.int64], inner: int, kind: str = "gcn", device: torch.device | str = "cpu"
) -> Operator:
    """P of ``graph`` between ``nodes`` (int64, n of them): n x n, with the degrees of the whole graph.

    The first ``inner`` nodes must have all their neighbours among ``nodes``; their rows are those of the whole P, entry
    by entry in the same order. Edges between two of the others are left out.
    """
    place = np.full(graph.num_nodes, -1, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    cut = Cut(graph, nodes, _has_loops(kind))
    indptr, indices, weights = (part.to(device) for part in cut.rows(place, inner))
    return _normalise(kind, indptr, indices, weights, cut)


def _normalise(
    kind: str,
    indptr: Tensor,
    indices: Tensor,
    weights: Tensor,
    cut: Cut | None = None,
    rate: float = 0.0,
    key: int = 0,
) -> Operator:
    """P from A or A + I; of a cut, which lost edges at ``rate`` by ``key``, with the degrees of its graph."""
    degree = _row_sums(indptr, weights) if cut is None else cut.degrees(rate, key).to(weights.device)
    one = torch.ones_like(degree)
    if kind in ("gcn", "symmetric"):
        root = torch.where(degree > 0, degree.rsqrt(), 0)
        values = values_t = _scale(indptr, indices, weights, root, root)
    elif kind == "mean":
        inverse = torch.where(degree > 0, 1 / degree.clamp(min=torch.finfo(degree.dtype).tiny), 0)
        values = _scale(indptr, indices, weights, inverse, one)
        values_t = _scale(indptr, indices, weights, one, inverse)
    else:
        values = values_t = weights
    return Operator(kind, indptr, indices, weights, values, values_t, _row_sums(indptr, values), cut)


def _row_sums(indptr: Tensor, values: Tensor) -> Tensor:
    if fused(values):
        out = torch.empty(len(indptr) - 1)
        kernels.row_sums(indptr.numpy(), values.numpy(), out.numpy())
        return out
    return torch.segment_reduce(values, "sum", offsets=indptr, initial=0.0)


def _scale(indptr: Tensor, indices: Tensor, weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    if fused(weights):
        out = torch.empty_like(weights)
        kernels.scale_edges(indptr.numpy(), indices.numpy(), weights.numpy(), left.numpy(), right.numpy(), out.numpy())
        return out
    return torch.repeat_interleave(left, indptr.diff()) * weights * right[indices.long()]


def _spmm(operator: Operator, values: Tensor, x: Tensor) -> Tensor:
    if fused(x):
        out = torch.empty_like(x)
        kernels.spmm(operator.indptr.numpy(), operator.indices.numpy(), values.numpy(), x.numpy(), out.numpy())
        return out
    size = (operator.num_nodes, operator.num_nodes)
    matrix = torch.sparse_csr_tensor(operator.indptr, operator.indices.long(), values, size, check_invariants=False)
    return matrix @ x


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: Operator) -> Tensor:
        ctx.operator = operator
        return _spmm(operator, operator.values, x.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        operator = ctx.operator
        return _spmm(operator, operator.values_t, grads[0].contiguous()), None


def propagate(operator: Operator, x: Tensor) -> Tensor:
    """P x for x of shape N x W; the gradient is the transposed product on the same pattern."""
    out: Tensor = _Propagate.apply(x, operator)  # type: ignore[no-untyped-call]
    return out


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, operator: Operator, mirror: Tensor) -> Tensor:
        ctx.operator = operator
        ctx.save_for_backward(values, x, mirror)
        return _spmm(operator, values, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, x, mirror = ctx.saved_tensors
        operator, grad = ctx.operator, grads[0].contiguous()
        if fused(x):
            by_value = torch.empty_like(values)
            kernels.sddmm(operator.indptr.numpy(), operator.indices.numpy(), grad.numpy(), x.numpy(), by_value.numpy())
        else:
            by_value = (grad[operator.rows] * x[operator.indices.long()]).sum(1)
        return by_value, _spmm(operator, values[mirror], grad), None, None


def mirror_edges(operator: Operator) -> Tensor:
    """For every stored edge (i, j) the position of (j, i): the transpose on a symmetric pattern (int64)."""
    rows, columns, count = operator.rows, operator.indices.long(), operator.num_nodes
    mirror = torch.empty_like(rows)
    mirror[torch.argsort(columns * count + rows)] = torch.argsort(rows * count + columns)
    return mirror


def attend(operator: Operator, x: Tensor, from_self: Tensor, from_neighbour: Tensor, mirror: Tensor) -> Tensor:
    """Attention: out[i] = sum_j a_ij x[j], a_ij = softmax_j LeakyReLU(from_self[i] + from_neighbour[j]), j in N(i) + i.

    x is N x H, the two scores are N; edges that were dropped (weight 0) get no attention.
    """
    rows, columns = operator.rows, operator.indices.long()
    score = torch.nn.functional.leaky_relu(from_self[rows] + from_neighbour[columns], 0.2)
    score = score.masked_fill(operator.weights == 0, -torch.inf)
    top = torch.segment_reduce(score.detach(), "max", offsets=operator.indptr)
    weight = (score - top[rows]).exp()
    total = torch.zeros_like(top).index_add(0, rows, weight)
    out: Tensor = _WeightedSum.apply(weight / total[rows], x, operator, mirror)  # type: ignore[no-untyped-call]
    return out


# ---------------------------------------------------------------------------------------------------- features


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
        return _kernels_on and self.device.type == "cpu"

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
    x = features.gather(columns, low, high)
    return block_linear(x, weight, groups.bounds[first : first + steps + 1] - low)


class _BlockLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bounds: Sequence[int], few: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bounds = bounds
        width, rows, pad = weight.shape[1], len(x), torch.nn.functional.pad
        out = x.new_empty(x.shape[0], (len(bounds) - 1) * width)
        for k in range(len(bounds) - 1):
            block, own = slice(bounds[k], bounds[k + 1]), out[:, k * width : (k + 1) * width]
            if width < NARROW or rows < few:
                wide = pad(weight[block], (0, max(0, NARROW - width)))
                tall = pad(x[:, block], (0, 0, 0, max(0, few - rows)))
                own.copy_((tall @ wide)[:rows, :width])
            else:
                torch.mm(x[:, block], weight[block], out=own)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        grad, bounds, width = grads[0], ctx.bounds, weight.shape[1]
        x_grad = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        weight_grad = torch.empty_like(weight)
        for k in range(len(bounds) - 1):
            block, own = slice(bounds[k], bounds[k + 1]), grad[:, k * width : (k + 1) * width]
            rows = _active_rows(own)
            if rows is None:
                torch.mm(x[:, block].T, own, out=weight_grad[block])
                if x_grad is not None:
                    torch.mm(own, weight[block].T, out=x_grad[:, block])
            else:
                own = own.index_select(0, rows)
                torch.mm(x[:, block].index_select(0, rows).T, own, out=weight_grad[block])
                if x_grad is not None:
                    x_grad[:, block].zero_().index_copy_(0, rows, own @ weight[block].T)
        return x_grad, weight_grad, None, None


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
    out: Tensor = _BlockLinear.apply(x, weight, [int(b) for b in bounds], FEW)  # type: ignore[no-untyped-call]
    return out


def row_linear(row: Tensor, weight: Tensor, bounds: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """:func:`block_linear` of a single row (bounds[-1]): K*H."""
    out: Tensor = _BlockLinear.apply(row[None], weight, [int(b) for b in bounds], 1)  # type: ignore[no-untyped-call]
    return out[0]
