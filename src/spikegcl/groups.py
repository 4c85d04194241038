"""Which feature column belongs to which time step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.errors import ConfigError
from spikegcl.noise import derive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.graph import Graph

GROUPINGS = ("chunk", "random", "cluster", "all")


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of d columns into T non-empty groups, or T groups of all of them.

    ``order`` (int64) lists the columns group after group; group t is ``order[bounds[t]:bounds[t + 1]]``.
    """

    order: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def steps(self) -> int:
        return len(self.bounds) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.bounds)

    @cached_property
    def step_of(self) -> NDArray[np.int32]:
        """Time step of each position in ``order`` (int32)."""
        return np.repeat(np.arange(self.steps, dtype=np.int32), self.sizes)

    @property
    def columns(self) -> int:
        """d, the number of columns."""
        return int(self.order.max()) + 1


def make_groups(graph: Graph, steps: int, grouping: str = "chunk", seed: int = 0) -> Groups:
    """Cut the d feature columns of ``graph`` into exactly ``steps`` groups that use every column.

    - ``chunk``: contiguous columns. Sizes differ by at most one: the first d mod T groups have one column more. (The
      paper's printed rule, T - 1 groups of d // T and the rest in the last, loses columns; torch.chunk may return
      fewer than T groups.)
    - ``random``: the same sizes over a seeded permutation of the columns.
    - ``cluster``: columns with similar profiles over the nodes together, by k-means on a random projection of the
      columns; sizes follow the data.
    - ``all``: no cut, every group has every column.

    >>> import numpy as np
    >>> from spikegcl.graph import build_graph
    >>> graph = build_graph([[0], [1]], np.arange(14.0).reshape(2, 7))
    >>> make_groups(graph, 3).sizes
    array([3, 2, 2])
    """
    width = graph.num_features
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, got {steps}")
    if grouping == "all":
        return Groups(np.tile(np.arange(width), steps), np.arange(steps + 1) * width)
    if steps > width:
        raise ConfigError(f"{steps} steps need at least {steps} feature columns, the graph has {width}; lower steps")
    bounds = np.concatenate([[0], np.cumsum(np.full(steps, width // steps) + (np.arange(steps) < width % steps))])
    if grouping == "chunk":
        return Groups(np.arange(width), bounds)
    if grouping == "random":
        return Groups(np.random.default_rng(derive(seed, "groups")).permutation(width), bounds)
    if grouping == "cluster":
        return _cluster(graph.features, steps, seed)
    raise ConfigError(f"unknown grouping {grouping!r}; choose one of {', '.join(GROUPINGS)}")


def _cluster(features: Any, steps: int, seed: int) -> Groups:
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(derive(seed, "groups"))
    sketch = np.asarray(features.T @ rng.standard_normal((features.shape[0], 64), dtype=np.float32))
    sketch /= np.maximum(np.linalg.norm(sketch, axis=1, keepdims=True), 1e-12)
    member = KMeans(steps, n_init=1, random_state=derive(seed, "groups")).fit_predict(sketch)
    sizes = np.bincount(member, minlength=steps)
    while (sizes == 0).any():  # identical columns leave clusters empty: split the largest until none is
        donor, empty = int(sizes.argmax()), int(np.flatnonzero(sizes == 0)[0])
        moved = np.flatnonzero(member == donor)[: sizes[donor] // 2]
        member[moved] = empty
        sizes = np.bincount(member, minlength=steps)
    return Groups(np.argsort(member, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))
