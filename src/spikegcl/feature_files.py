"""Feature files in blocks, whatever they are: tables keyed by id, or arrays by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spikegcl.blocks import BadRows, TableFile
from spikegcl.errors import FeatureError, ReadError
from spikegcl.prepared import blocks
from spikegcl.readers import ID
from spikegcl.tables import TABLES, check_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Rows = tuple[Any, NDArray[np.float32], NDArray[np.int64], float]


@dataclass(frozen=True)
class FeatureFile:
    """A file of features, ``width`` columns of them.

    ``blocks`` gives ids (Arrow; None where a row's number is the id), the matrix, the place of each row, and the share
    of the file read so far.
    """

    path: Path
    names: list[str] | None
    width: int
    keyed: bool
    where: Callable[[int], str]
    blocks: Callable[[BadRows], Iterator[Rows]]

    def finite_blocks(self, bad: BadRows) -> Iterator[Rows]:
        """``blocks`` without the rows that have a NaN or an infinity."""
        for ids, matrix, places, share in self.blocks(bad):
            finite = np.isfinite(matrix).all(1)
            if finite.all():
                yield ids, matrix, places, share
                continue
            wrong = np.argwhere(~np.isfinite(matrix[~finite]))
            _, first = np.unique(wrong[:, 0], return_index=True)
            texts = (
                f"{self.where(place)}: feature {self._label(column)} is not a finite float32 number"
                for place, column in zip(places[~finite].tolist(), wrong[first, 1].tolist())
            )
            bad.add("features that are not finite", texts, len(first))
            # Rows of an array keep their numbers as ids.
            ids = pa.array(places) if ids is None else ids
            yield ids.filter(pa.array(finite)), matrix[finite], places[finite], share

    def _label(self, column: int) -> str:
        return repr(self.names[column]) if self.names else str(column + 1)


def open_features(paths: Sequence[Path]) -> list[FeatureFile]:
    """The files, checked to be of one kind and to have the same columns."""
    files = [_open(path) for path in paths]
    first = files[0]
    for other in files[1:]:
        if (other.names, other.width, other.keyed) != (first.names, first.width, first.keyed):
            raise FeatureError(f"{other.path} has other columns than {first.path}; every file needs the same features")
    if len(files) > 1 and not first.keyed:
        raise FeatureError("rows of several arrays have no common numbers; key features by id to give them in parts")
    if first.names is not None and len(set(first.names)) != len(first.names):
        raise FeatureError(f"{first.path}: feature column names must be unique")
    return files


def _open(path: Path) -> FeatureFile:
    path, suffix = check_path(path, (*TABLES, ".npy"))
    if suffix == ".npy":
        return _open_array(path)
    table = TableFile(path, (ID,), True)
    names, width = table.names()

    def read(bad: BadRows) -> Iterator[Rows]:
        for block, share in table.blocks(bad):
            matrix = np.empty((len(block.places), width - 1), np.float32)
            for number, column in enumerate(block.columns[1:]):
                matrix[:, number] = column.to_numpy(zero_copy_only=False)
            yield block.columns[0], matrix, block.places, share

    return FeatureFile(path, names and names[1:], width - 1, True, table.where, read)


def _open_array(path: Path) -> FeatureFile:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ReadError(f"{path} cannot be read: {error}; write it with numpy.save, numbers only") from error
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "fiub":
        raise FeatureError(
            f"{path} holds {array.dtype} {array.shape}; features are a matrix of numbers, a row per node"
        )
    total, width = array.shape

    def read(_: BadRows) -> Iterator[Rows]:
        done = 0
        for block in blocks(path):
            places = np.arange(done, done + len(block))
            done += len(block)
            with np.errstate(over="ignore"):
                yield None, np.ascontiguousarray(block, np.float32), places, done / total

    return FeatureFile(path, None, width, False, lambda row: f"{path}, row {row}", read)
