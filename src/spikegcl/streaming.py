"""Products with a graph that is gone through in blocks of rows; what is as large as the graph is in temporary files.

A propagation over many hops reaches most of a graph, so no halo would do. Here a block of rows of P is made from the
graph's arrays when its turn comes, and the dense arrays are memory-mapped: the system keeps in memory what fits.
Every row is computed as it would be in one piece, and so are all of its bits.
"""

from __future__ import annotations

import itertools
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spikegcl import kernels
from spikegcl.propagate import Cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from spikegcl.components import Scaling
    from spikegcl.graph import Graph

    Floats = NDArray[np.float32]


def temporary_array(shape: tuple[int, int]) -> Floats:
    """An array in a file that disappears with it, in the folder that TMPDIR names."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)  # the mapping outlives the handle


def _blocks(count: int, blocks: int) -> Iterator[tuple[int, int]]:
    """Bounds of ``blocks`` nearly equal ranges of 0 .. count - 1."""
    bounds = [count * number // blocks for number in range(blocks + 1)]
    return itertools.pairwise(bounds)


class StreamedOperator:
    """P = D^-1/2 (A + I) D^-1/2 of a graph, of which one block of rows exists at a time."""

    def __init__(self, graph: Graph, blocks: int) -> None:
        self.graph, self.blocks = graph, blocks
        self.place = np.arange(graph.num_nodes, dtype=np.int32)
        self.root = torch.cat([self._cut(low, high).degrees() for low, high in self._bounds()]).rsqrt()

    def times(self, x: Tensor) -> Tensor:
        """P x for x of shape N x W, in a temporary file."""
        out = temporary_array((x.shape[0], x.shape[1]))
        for low, high in self._bounds():
            indptr, indices, weights = (part.numpy() for part in self._cut(low, high).rows(self.place, high - low))
            values = np.empty_like(weights)
            kernels.scale_edges(indptr, indices, weights, self.root[low:high].numpy(), self.root.numpy(), values)
            kernels.spmm(indptr, indices, values, x.numpy(), out[low:high])
        return torch.from_numpy(out)

    def _bounds(self) -> Iterator[tuple[int, int]]:
        return _blocks(self.graph.num_nodes, self.blocks)

    def _cut(self, low: int, high: int) -> Cut:
        return Cut(self.graph, np.arange(low, high), loops=True)


class StreamedRows:
    """Scaled features (N x d, dense or CSR), of which one block of rows exists at a time."""

    def __init__(self, features: Any, scaling: Scaling, blocks: int) -> None:
        self.features, self.scaling, self.blocks = features, scaling, blocks

    @property
    def shape(self) -> tuple[int, int]:
        return self.features.shape[0], self.features.shape[1]

    def times(self, weight: Floats) -> Floats:
        """The matrix times ``weight`` (d x W): N x W, in a temporary file."""
        out = temporary_array((self.shape[0], weight.shape[1]))
        for low, high in _blocks(len(out), self.blocks):
            out[low:high] = self.scaling.apply(self.features[low:high]).times(weight)
        return out

    def columns(self, first: int, last: int) -> Floats:
        """Columns ``first`` to ``last`` as a dense matrix, in a temporary file."""
        out = temporary_array((self.shape[0], min(last, self.shape[1]) - first))
        for low, high in _blocks(len(out), self.blocks):
            out[low:high] = self.scaling.apply(self.features[low:high]).columns(first, last)
        return out
