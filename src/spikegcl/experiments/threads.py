"""How many threads a cell may use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numba
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """As many threads, inside the block, for each library that has a pool of its own.

    numba's kernels and torch share OpenMP, and the first kernel sets the threads of both to all cores: so numba starts
    here, and torch comes last. Cells side by side with a thread a core each wait for one another.
    """
    before = numba.get_num_threads(), torch.get_num_threads()
    with threadpool_limits(count):
        try:
            _set_threads(min(count, numba.config.NUMBA_NUM_THREADS), count)
            yield
        finally:
            _set_threads(*before)


def _set_threads(of_numba: int, of_torch: int) -> None:
    numba.set_num_threads(of_numba)
    torch.set_num_threads(of_torch)
