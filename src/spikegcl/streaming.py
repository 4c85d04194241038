"""Rows and products of graphs that are gone through block by block; what is as large as a graph may be in a file.

A propagation over many hops reaches most of a graph, so no halo would do. Here a block of rows of P is made from the
graph's arrays when its turn comes, and the dense arrays are memory-mapped: the system keeps in memory what fits.
Every row is computed as it would be in one piece. Sums over nodes are taken in blocks of ``ROWS`` rows, always the same
ones, and the blocks are added in double precision. Results therefore do not depend on where arrays are kept.
"""

from __future__ import annotations

import itertools
import mmap
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from spikegcl import kernels, noise
from spikegcl.propagate import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.scaling import Scaling

    Floats = NDArray[np.float32]
    NewArray = Callable[[tuple[int, int]], Floats]

ROWS = 2**16  # rows of a block


def temporary_array(shape: tuple[int, int]) -> Floats:
    """Zeros in a file that disappears with the array, in the folder that TMPDIR names."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)  # the mapping outlives the handle


def _release(*arrays: NDArray[Any]) -> None:
    """Give back the pages of those arrays that are mapped: the system still caches them, while there is room."""
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        if isinstance(base, np.memmap) and base.mode != "c":  # a private copy would lose what was written to it
            base._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def array_in_memory(shape: tuple[int, int]) -> Floats:
    return np.zeros(shape, np.float32)


def arrays_for(blocks: int | None) -> NewArray:
    """Where results with a row for every node are kept: in memory, or in files for what is done in ``blocks``."""
    return array_in_memory if blocks is None else temporary_array


def row_blocks(count: int, blocks: int | None = None) -> list[slice]:
    """Nearly equal ranges of ``count`` rows: ``blocks`` of them, or as many as ``ROWS`` asks for."""
    blocks = blocks or -(-count // ROWS)
    return [slice(*pair) for pair in itertools.pairwise(count * number // blocks for number in range(blocks + 1))]


# ------------------------------------------------------------------------------------------------- sums over rows


def copy_columns(into: Floats, values: Floats, columns: slice = slice(None)) -> None:
    """Copy ``columns`` of ``values`` block by block: of mapped arrays no more than a block is in memory."""
    for block in row_blocks(len(values)):
        into[block] = values[block, columns]
        _release(into, values)


def column_sums(values: Floats) -> Floats:
    """Sum of every column of ``values`` (N x W)."""
    return np.asarray(sum(values[block].sum(0).astype(np.float64) for block in row_blocks(len(values))), np.float32)


def column_variances(values: Floats) -> NDArray[np.float64]:
    """Variance of every column of ``values`` (N x W), in double precision."""
    count, blocks = len(values), row_blocks(len(values))
    mean = sum(values[block].sum(0, dtype=np.float64) for block in blocks) / count
    variances: NDArray[np.float64] = sum(np.square(values[block] - mean).sum(0) for block in blocks) / count
    return variances


def square_lengths(rows: Floats) -> Floats:
    """Squared Euclidean length of every row (N)."""
    return np.concatenate([np.square(rows[block]).sum(1) for block in row_blocks(len(rows))])


def orthonormalise(values: Floats) -> None:
    """Replace the columns of ``values`` (N x W, W at most the rows of a block) by an orthonormal basis of their span.

    The QR decomposition of a tall matrix by blocks (Demmel, Grigori, Hoemmen and Langou, 2012): every block has its
    own, and that of their stacked triangles joins them.
    """
    blocks, triangles = row_blocks(len(values)), []
    for block in blocks:
        values[block], triangle = np.linalg.qr(values[block])
        triangles.append(triangle)
    if len(blocks) > 1:
        turns = np.split(np.linalg.qr(np.concatenate(triangles))[0], len(blocks))
        for block, turn in zip(blocks, turns, strict=True):
            values[block] = values[block] @ turn


def strengths(graph: Graph) -> NDArray[np.float64]:
    """The sum of the weights of every node's edges (N)."""
    if graph.weights is None:
        return graph.degrees.astype(np.float64)
    ones = np.ones(graph.num_nodes)  # of 64 bits, and so are the sums
    return np.concatenate([_neighbours(graph, block) @ ones for block in row_blocks(graph.num_nodes)])


def likeness(graph: Graph, values: Floats, dropped: Drop | None = None) -> tuple[float, float]:
    """Sums over the edges (i, j) of ``graph`` of weight times values[i] . values[j] (N x W), and of squared weights.

    Weights are shares of the largest. With ``dropped`` over the edges alone that an operator loses by it.
    """
    total, squares = 0.0, 0.0
    most = 1.0 if graph.weights is None else float(graph.weights.max(initial=0)) or 1.0
    names = np.arange(len(values), dtype=np.int32)
    for block in row_blocks(len(values)):
        rows = _neighbours(graph, block)
        rows.data = rows.data / np.float32(most)
        if dropped is not None:
            rows.data = rows.data * (1 - dropped.kept(rows.indptr, rows.indices, names[block], names))
        total += float(np.vdot(values[block], rows @ values))
        squares += float(np.vdot(rows.data, rows.data))
    return total, squares


def _neighbours(graph: Graph, block: slice) -> sp.csr_array:
    """Rows of the adjacency."""
    starts = graph.indptr[block.start : block.stop + 1]
    edges = slice(starts[0], starts[-1])
    weights = np.ones(edges.stop - edges.start, np.float32) if graph.weights is None else graph.weights[edges]
    return sp.csr_array((weights, graph.indices[edges], starts - starts[0]), (len(starts) - 1, graph.num_nodes))


# ------------------------------------------------------------------------------------------------------- products


class Drop(NamedTuple):
    """A random share ``rate`` of the undirected edges: those that :meth:`Operator.drop_edges` drops by ``key``."""

    rate: float
    key: int

    def kept(self, indptr: Any, indices: Any, rows: Any, names: Any) -> Floats:
        """1 for every stored edge that stays, as self-loops do, else 0; see :func:`kernels.keep_edges`."""
        kept = np.empty(len(indices), np.float32)
        kernels.keep_edges(indptr, indices, rows, names, self.key, noise.cutoff(self.rate), kept)
        return kept


class StreamedOperator:
    """P = D^-1/2 (A + I) D^-1/2 of a graph, of which one block of rows exists at a time; it may have lost edges."""

    def __init__(self, graph: Graph, blocks: int, dropped: Drop | None = None) -> None:
        self.graph, self.blocks, self.dropped = graph, row_blocks(graph.num_nodes, blocks), dropped
        self.place = np.arange(graph.num_nodes, dtype=np.int32)
        self.root = torch.cat([self._cut(block).degrees(*(dropped or ())) for block in self.blocks]).rsqrt()

    def drop_edges(self, rate: float, key: int) -> StreamedOperator:
        """P of the graph without a random share ``rate`` of its undirected edges, as :class:`Operator` has it."""
        return StreamedOperator(self.graph, len(self.blocks), Drop(rate, key))

    def step(self, z: Floats, start: Floats, restart: float) -> Floats:
        """(1 - restart) P z + restart start, each N x W; in a temporary file."""
        out = temporary_array((z.shape[0], z.shape[1]))
        for block in self.blocks:
            rows = self._cut(block).rows(self.place, block.stop - block.start)
            indptr, indices, weights = (part.numpy() for part in rows)
            if self.dropped is not None:
                weights *= self.dropped.kept(indptr, indices, self.place[block], self.place)
            values = np.empty_like(weights)
            kernels.scale_edges(indptr, indices, weights, self.root[block].numpy(), self.root.numpy(), values)
            kernels.spmm(indptr, indices, values, z, out[block])
            if restart:
                own = torch.from_numpy(start[block])
                torch.from_numpy(out[block]).mul_(1 - restart).add_(own, alpha=restart)
            _release(out, z, start, self.graph.indices)
        return out

    def _cut(self, block: slice) -> Cut:
        return Cut(self.graph, np.arange(block.start, block.stop), loops=True)


class ScaledRows:
    """Scaled features (N x d, dense or CSR), of which one block of rows exists at a time.

    ``new_array`` says where results with N rows are kept.
    """

    def __init__(self, features: Any, scaling: Scaling, new_array: NewArray) -> None:
        self.features, self.scaling, self.new_array = features, scaling, new_array

    @property
    def shape(self) -> tuple[int, int]:
        return self.features.shape[0], self.features.shape[1]

    def times(self, weight: Floats) -> Floats:
        """The matrix times ``weight`` (d x W): N x W."""
        out = self.new_array((self.shape[0], weight.shape[1]))
        for block, rows in self._blocks():
            out[block] = rows.times(weight)
            _release(out)
        return out

    def transposed_times(self, values: Floats) -> Floats:
        """The transposed matrix times ``values`` (N x W): d x W."""
        products = (rows.transposed_times(values[block]).astype(np.float64) for block, rows in self._blocks())
        return np.asarray(sum(products), np.float32)

    def columns(self, first: int, last: int) -> Floats:
        """Columns ``first`` to ``last`` as a dense matrix."""
        out = self.new_array((self.shape[0], min(last, self.shape[1]) - first))
        for block, rows in self._blocks():
            out[block] = rows.columns(first, last)
            _release(out)
        return out

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        for block in row_blocks(self.shape[0]):
            yield block, self.scaling.apply(self.features[block])
            _release(self.features)
