"""CSR matrices written to array files as they stream by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spikegcl.prepared import SPARSE, ArrayFile, blocks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray


def write_adjacency(
    folder: Path, sorted_pairs: Iterable[tuple[NDArray[np.int64], NDArray[np.float32] | None]], count: int
) -> int:
    """Write ``indptr.npy``, ``indices.npy`` and, unless all are 1, ``weights.npy``; the number of entries.

    ``sorted_pairs`` are blocks of ``row << 32 | column``, ascending over all blocks, and their weights or None.
    Repeated pairs become one with the largest weight.
    """
    rows_begun, entries, unit, weighted = 0, 0, True, False
    pairs, weights = np.zeros(0, np.int64), np.zeros(0, np.float32)
    with (
        ArrayFile(folder / "indptr.npy", np.int64) as indptr,
        ArrayFile(folder / "indices.npy", np.int32) as indices,
        ArrayFile(folder / "weights.npy", np.float32) as kept_weights,
    ):

        def write(pairs: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
            nonlocal rows_begun, entries, unit
            rows = pairs >> 32
            if len(rows):
                begun = np.arange(rows_begun, rows[-1] + 1)
                indptr.append(entries + np.searchsorted(rows, begun))
                rows_begun = int(rows[-1]) + 1
            indices.append(pairs & 0x7FFFFFFF)
            kept_weights.append(weights)
            unit &= bool((weights == 1).all())
            entries += len(pairs)

        for more_pairs, more_weights in sorted_pairs:
            # The last pair waits: the next block may repeat it.
            pairs = np.concatenate([pairs, more_pairs])
            first = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
            if more_weights is not None:
                weighted = True
                weights = np.maximum.reduceat(np.concatenate([weights, more_weights]), first)
            pairs = pairs[first]
            write(pairs[:-1], weights[:-1])
            pairs, weights = pairs[-1:], weights[-1:]
        write(pairs, weights)
        indptr.append(np.full(count + 1 - rows_begun, entries))
    if not weighted or unit:
        (folder / "weights.npy").unlink()
    return entries


def write_without(path: Path, rows: NDArray[np.int64]) -> int:
    """Remove these rows (ascending) of an array file; how many of the remaining numbers are not zero."""
    rest, begun, filled = path.with_name("rest.npy"), 0, 0
    with ArrayFile(rest, np.float32, np.load(path, mmap_mode="r").shape[1]) as file:
        for block in blocks(path):
            inside = rows[np.searchsorted(rows, begun) : np.searchsorted(rows, begun + len(block))]
            kept = np.delete(block, inside - begun, axis=0)
            filled += int(np.count_nonzero(kept))
            begun += len(block)
            file.append(kept)
    rest.replace(path)
    return filled


def write_features_as_csr(path: Path) -> None:
    """Replace a dense array file by the three files of its CSR form."""
    entries = 0
    names = [path.with_name(name) for name in SPARSE]
    with (
        ArrayFile(names[0], np.int64) as indptr,
        ArrayFile(names[1], np.int32) as indices,
        ArrayFile(names[2], np.float32) as data,
    ):
        indptr.append(np.zeros(1, np.int64))
        for block in blocks(path):
            filled = block != 0
            ends = entries + np.cumsum(filled.sum(1))
            indptr.append(ends)
            indices.append(np.nonzero(filled)[1])
            data.append(block[filled])
            entries = int(ends[-1])
    path.unlink()
