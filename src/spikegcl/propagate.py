"""Products with the graph.

The normalised adjacency P is computed once a view and applied to many columns at once. Every product has two forms
that the tests hold to the same numbers: the numba kernels on the CPU, plain torch elsewhere.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from spikegcl import kernels, noise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from spikegcl.graph import Graph

_kernels_on = True


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Inside this context no product uses the CPU kernels: what other devices run, for tests and comparisons."""
    global _kernels_on
    before, _kernels_on = _kernels_on, False
    try:
        yield
    finally:
        _kernels_on = before


def fused(x: Tensor | torch.device) -> bool:
    """Whether the CPU kernels handle this tensor, or tensors of this device."""
    device = x if isinstance(x, torch.device) else x.device
    return _kernels_on and device.type == "cpu"


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
    ``before`` is the operator that lost edges to become this one; it has the same pattern.
    """

    kind: str
    indptr: Tensor
    indices: Tensor
    weights: Tensor
    values: Tensor
    values_t: Tensor
    reach: Tensor
    cut: Cut | None = None
    before: Operator | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def rows(self) -> Tensor:
        """Row index of every stored edge (int64)."""
        count = torch.arange(self.num_nodes, device=self.indptr.device)
        return torch.repeat_interleave(count, self.indptr.diff())

    @cached_property
    def mirror(self) -> Tensor:
        """For every stored edge (i, j) the position of (j, i): the transpose on a symmetric pattern (int64)."""
        if self.before is not None:
            return self.before.mirror
        rows, columns, count = self.rows, self.indices.long(), self.num_nodes
        mirror = torch.empty_like(rows)
        mirror[torch.argsort(columns * count + rows)] = torch.argsort(rows * count + columns)
        return mirror

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
            pattern = self.indptr.numpy(), self.indices.numpy()
            kernels.keep_edges(*pattern, self.names, self.names, key, noise.cutoff(rate), kept.numpy())
        else:
            names = torch.from_numpy(self.names).to(self.indices.device)
            i, j = names[self.rows], names[self.indices.long()]
            kept = (noise.keep(key, torch.minimum(i, j), torch.maximum(i, j), rate) | (i == j)).float()
        dropped = _normalise(self.kind, self.indptr, self.indices, self.weights * kept, self.cut, rate, key)
        return replace(dropped, before=self)


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


def multiply(indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A x for a sparse A (M x N, by rows) and a dense, contiguous x (N x W); no gradient."""
    rows = len(indptr) - 1
    if fused(x):
        out = torch.empty(rows, x.shape[1])
        kernels.spmm(indptr.numpy(), indices.numpy(), values.numpy(), x.numpy(), out.numpy())
        return out
    return torch.sparse_csr_tensor(indptr, indices.long(), values, (rows, len(x)), check_invariants=False) @ x


def multiply_at(indptr: Tensor, indices: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The entries of left right^T (M x W and N x W) where a sparse M x N pattern has one; no gradient."""
    if fused(right):
        out = torch.empty(len(indices))
        kernels.sddmm(indptr.numpy(), indices.numpy(), left.numpy(), right.numpy(), out.numpy())
        return out
    return (torch.repeat_interleave(left, indptr.diff(), 0) * right[indices.long()]).sum(1)


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: Operator) -> Tensor:
        ctx.operator = operator
        return multiply(operator.indptr, operator.indices, operator.values, x.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        operator = ctx.operator
        return multiply(operator.indptr, operator.indices, operator.values_t, grads[0].contiguous()), None


def propagate(operator: Operator, x: Tensor) -> Tensor:
    """P x for x of shape N x W; the gradient is the transposed product on the same pattern."""
    out: Tensor = _Propagate.apply(x, operator)  # type: ignore[no-untyped-call]
    return out


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, operator: Operator) -> Tensor:
        ctx.operator = operator
        ctx.save_for_backward(values, x)
        return multiply(operator.indptr, operator.indices, values, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        values, x = ctx.saved_tensors
        pattern, grad = (ctx.operator.indptr, ctx.operator.indices), grads[0].contiguous()
        return multiply_at(*pattern, grad, x), multiply(*pattern, values[ctx.operator.mirror], grad), None


def attend(operator: Operator, x: Tensor, from_self: Tensor, from_neighbour: Tensor) -> Tensor:
    """Attention: out[i] = sum_j a_ij x[j], a_ij = softmax_j LeakyReLU(from_self[i] + from_neighbour[j]), j in N(i) + i.

    x is N x H, the two scores are N; edges that were dropped (weight 0) get no attention.
    """
    rows, columns = operator.rows, operator.indices.long()
    score = torch.nn.functional.leaky_relu(from_self[rows] + from_neighbour[columns], 0.2)
    score = score.masked_fill(operator.weights == 0, -torch.inf)
    top = torch.segment_reduce(score.detach(), "max", offsets=operator.indptr)
    weight = (score - top[rows]).exp()
    total = torch.zeros_like(top).index_add(0, rows, weight)
    out: Tensor = _WeightedSum.apply(weight / total[rows], x, operator)  # type: ignore[no-untyped-call]
    return out
