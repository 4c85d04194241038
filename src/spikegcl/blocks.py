"""Tables in blocks, for files larger than memory: the same rows as :mod:`spikegcl.tables` reads, some at a time.

Rows that cannot be used do not stop the reading. They are counted and the first few located; at the end of a stage
the whole list is refused or skipped, as the user chose.
"""

from __future__ import annotations

import codecs
import gzip
import logging
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spikegcl.errors import ReadError
from spikegcl.tables import (
    Layout,
    arrange,
    as_text,
    count_comments,
    line_number,
    report_comments,
    report_ignored,
    text_layout,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")

BLOCK_BYTES = 1 << 24
SHOWN = 5  # bad rows of each kind that are located in the message
ON_BAD = ("refuse", "skip")


class BadRows:
    """Rows that cannot be used: how many of each kind, where the first are, and whether to go on without them."""

    def __init__(self, skip: bool) -> None:
        self.skip, self.counts = skip, Counter[str]()
        self._new, self._examples = Counter[str](), list[str]()

    def add(self, kind: str, examples: Iterable[str], count: int) -> None:
        """Count rows of one kind; ``examples`` says where each is and what is wrong, and is read as far as shown."""
        if count:
            self._examples += islice(examples, max(0, SHOWN - self._new[kind]))
            self._new[kind] += count

    def settle(self) -> None:
        """Refuse what was found since the last call, or report it and go on."""
        if not self._new:
            return
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self._new.items())
        text = "\n".join([f"rows that cannot be used ({kinds}), the first of each kind being", *self._examples])
        self.counts += self._new
        self._new, self._examples = Counter(), []
        if not self.skip:
            raise ReadError(f"{text}\ncorrect them, or go on without them with --on-bad skip")
        log.warning("skipped %s", text)


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table: ids first (int64 or text), and the line or row number of each (int64)."""

    columns: list[Any]
    places: NDArray[np.int64]

    def keep(self, rows: NDArray[np.bool_]) -> Block:
        return Block([column.filter(pa.array(rows)) for column in self.columns], self.places[rows])


@dataclass(frozen=True)
class TableFile:
    """A table on disk, CSV, TSV or Parquet, with one id column per key; the other columns are numbers or text."""

    path: Path
    keys: Sequence[frozenset[str]]
    numbers: bool

    @property
    def is_parquet(self) -> bool:
        return self.path.suffix.lower() == ".parquet"

    def where(self, place: int) -> str:
        return f"{self.path}, {'row' if self.is_parquet else 'line'} {place}"

    def names(self) -> tuple[list[str] | None, int]:
        """Column names, ids first, if the file has them, and how many columns there are."""
        if self.is_parquet:
            names, order = self._parquet()[1:]
            return [names[i] for i in order], len(order)
        for data in _line_chunks(self.path):
            if found := text_layout(self.path, data, self.keys, self.numbers):
                return found[0].ordered_names, len(found[0].order)
        raise ReadError(f"{self.path} is empty; it needs at least one line that is not a comment")

    def blocks(self, bad: BadRows) -> Iterator[tuple[Block, float]]:
        """Blocks with the share of the file read so far; malformed rows and empty ids go to ``bad``."""
        for block, share in self._parquet_blocks() if self.is_parquet else self._text_blocks(bad):
            filled = np.ones(len(block.places), bool)
            for column in block.columns[: len(self.keys)]:
                empty = pc.is_null(column) if pa.types.is_integer(column.type) else pc.equal(column, "")
                filled &= ~np.asarray(empty)
            if filled.all():
                yield block, share
            else:
                places = block.places[~filled].tolist()
                bad.add("empty ids", (f"{self.where(place)}: a node id is empty" for place in places), len(places))
                kept, keys = block.keep(filled), len(self.keys)  # an empty id has made text of a column of integers
                yield Block([*map(_plain_ids, kept.columns[:keys]), *kept.columns[keys:]], kept.places), share

    def _parquet(self) -> tuple[Any, list[str], list[int]]:
        from pyarrow import parquet

        try:
            # Without buffering ahead: a whole group of rows may be larger than the memory we were given.
            file = parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 16)
        except (pa.ArrowException, OSError) as error:
            raise ReadError(f"{self.path} is not a readable Parquet file: {error}") from error
        names: list[str] = file.schema_arrow.names
        return file, names, arrange(self.path, names, len(names), self.keys)

    def _parquet_blocks(self) -> Iterator[tuple[Block, float]]:
        file, names, order = self._parquet()
        report_ignored(self.path, len(names), order)
        first, total = 0, max(1, file.metadata.num_rows)
        size = max(1024, min(1 << 20, BLOCK_BYTES // (8 * len(order))))
        for batch in file.iter_batches(size, columns=[names[i] for i in order], use_threads=False):
            columns = []
            for rank, name in enumerate(names[i] for i in order):
                column = batch.column(name)
                number = self.numbers and rank >= len(self.keys)
                try:
                    columns.append(column.cast(pa.float32(), safe=False) if number else _plain_ids(column))
                except pa.ArrowException as error:
                    kind = "numbers" if number else "text or integers"
                    raise ReadError(f"{self.path}, column {name!r}: {column.type} is not {kind} ({error})") from error
            yield Block(columns, np.arange(first, first + len(batch))), (first + len(batch)) / total
            first += len(batch)

    def _text_blocks(self, bad: BadRows) -> Iterator[tuple[Block, float]]:
        layout: Layout | None = None
        size, done, lines_before, comments = max(1, self.path.stat().st_size), 0, 0, 0
        for data in _line_chunks(self.path):
            if layout is None:
                found = text_layout(self.path, data, self.keys, self.numbers)
                layout, clean = found or (None, data)
                if layout is not None:
                    layout.report(self.path)
            else:
                clean = layout.clean(data)
            done += len(data)
            if layout is not None:
                columns, clean = self._parse(layout, clean, lines_before, bad)
                yield Block(list(map(_plain_ids, columns)), _line_numbers(clean) + lines_before), min(1, done / size)
            lines_before += line_number(data, len(data)) - 1
            comments += count_comments(data)
        report_comments(self.path, comments)
        if layout is None:
            raise ReadError(f"{self.path} is empty; it needs at least one line that is not a comment")

    def _parse(self, layout: Layout, data: bytes, lines_before: int, bad: BadRows) -> tuple[list[Any], bytes]:
        """Columns of these lines, and the lines without those that are malformed."""
        try:
            return layout.parse(data), data
        except pa.ArrowInvalid as error:
            wrong = list(layout.complaints(data))
            if not wrong:
                raise ReadError(f"{self.path}: {error}") from error
        places = (f"{self.where(lines_before + line_number(data, line.start()))}{text}" for line, text in wrong)
        bad.add("malformed lines", places, len(wrong))
        kept, start = [], 0
        for line, _ in wrong:
            kept.append(data[start : line.start()])
            start = line.end()
        data = b"".join([*kept, data[start:]])
        return layout.parse(data), data


def _plain_ids(column: Any) -> Any:
    """Ids (or labels) as int64 if all of them are plain integers, else as text; numbers of features as they are."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == pa.float32():
        return column
    if not pa.types.is_integer(column.type):
        column = as_text(column)
        if not pc.all(pc.match_substring_regex(column, "^(?:0|-?[1-9][0-9]*)$")).as_py():
            return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return as_text(column)


def _line_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a text file, cut at the ends of lines, UTF-8 checked."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    lines_before, rest = 0, b""
    try:
        with opened(path, "rb") as file:
            while True:
                more = file.read(BLOCK_BYTES)
                data = rest + more
                cut = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1 if more else len(data)
                data, rest = data[:cut], data[cut:]
                if data:
                    data.decode()
                    yield data.removeprefix(codecs.BOM_UTF8) if lines_before == 0 else data
                    lines_before += line_number(data, len(data)) - 1
                if not more:
                    return
    except UnicodeDecodeError as error:
        line = lines_before + data.count(b"\n", 0, error.start) + 1
        raise ReadError(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8; save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ReadError(f"{path} cannot be read: {error}") from error


def _line_numbers(data: bytes) -> NDArray[np.int64]:
    """The number of each line that is not empty, from 1.

    >>> _line_numbers(b"a\\r\\n\\r\\nb\\nc").tolist()
    [1, 3, 4]
    """
    letters = np.frombuffer(data, np.uint8)
    feed, back = letters == 10, letters == 13
    after_end = np.concatenate([[True], (feed | back)[:-1]]) if len(letters) else feed
    starts = np.flatnonzero(after_end & ~(feed | back))
    ends = feed | (back & ~np.append(feed[1:], False))
    return np.cumsum(ends)[starts] + 1
