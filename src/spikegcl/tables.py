"""Tables keyed by node id, from text or Parquet.

What every table (edges, keyed features, labels, split) has in common:

- ``.csv``, ``.tsv`` and ``.txt`` (also ``.gz``) are separated by tab, comma, semicolon or blanks, whichever the first
  line uses; lines that start with ``#`` are comments. ``.parquet`` brings its own column names.
- The first line is a header when it holds known names (``source,target``, ``id``, ...), or when none of its cells is
  a number while the ids or the values of the second line all are. Otherwise it is data. A header is logged.
- Ids are compared as text, so ``01`` is not ``1``; blanks around them do not count. They become int64 when every one
  is written as a plain integer that fits, else all are strings.
- Messages count lines of text from 1, as editors do, and rows of arrays and Parquet from 0, as numpy and pandas do.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import logging
import re
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from spikegcl.errors import ReadError, SpikeGCLError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")

BLOCK = 1 << 26  # bytes of a text file that are parsed at a time

TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet")

# The names pandas gives to an index it writes as the first column: its numbers are neither weights nor features.
_PANDAS_INDEX = frozenset({"", "__index_level_0__"})


@dataclass(frozen=True)
class Table:
    """Columns of a file as Arrow arrays, ids first, and the way back from a row to the place a user can look at."""

    names: list[str] | None
    columns: list[Any]
    where: Callable[[int], str]

    def check_unique(self, error: type[SpikeGCLError]) -> None:
        seen: dict[str, int] = {}
        for row, node in enumerate(self.columns[0].to_pylist()):
            if seen.setdefault(node, row) != row:
                raise error(
                    f"{self.where(row)}: node id {node!r} is already at {self.where(seen[node])}; keep one of them"
                )

    def check_known(self, positions: NDArray[Any], error: type[SpikeGCLError], advice: str) -> None:
        """Raise ``error`` if an id has no node: ``positions`` (id columns x rows) is -1 there."""
        unknown = positions < 0
        if unknown.any():
            texts = np.stack([column.to_pylist() for column in self.columns[: len(positions)]], dtype=object)
            count = len(set(texts[unknown]))
            row = int(unknown.any(axis=0).argmax())
            example = texts[unknown[:, row].argmax(), row]
            more = f"{count} such id{'s' if count > 1 else ''} in this file"
            raise error(f"{self.where(row)}: node id {example!r} {advice} ({more})")


@dataclass(frozen=True)
class Layout:
    """How the lines of a text file are read. ``order`` has the positions of its columns, ids first."""

    delimiter: str
    names: list[str] | None
    width: int
    order: list[int]
    numeric: list[int]

    @property
    def ordered_names(self) -> list[str] | None:
        return self.names and [self.names[i] for i in self.order]

    def report(self, path: Path) -> None:
        if self.names is not None:
            log.info("%s: the first line (%s) is read as a header", path, ", ".join(self.names[:5]))
        report_ignored(path, self.width, self.order)

    def clean(self, data: bytes) -> bytes:
        """``data`` without comments, and with single blanks where these separate; every line keeps its number."""
        data = _without_comments(data)
        return _single_blanks(data) if self.delimiter == " " else data

    def parse(self, data: bytes) -> list[Any]:
        """The columns of clean lines without a header, ids first; ArrowInvalid where :meth:`complaints` has some."""
        table = arrow_csv.read_csv(
            pa.BufferReader(data.lstrip(b"\r\n") or b"\n"),
            # A line must fit into a block, and a line of features may be long. One block needs no threads, and a
            # process that has torch and ends while Arrow's are waiting (a wrong file is found soon) may abort.
            read_options=arrow_csv.ReadOptions(
                column_names=[str(i) for i in range(self.width)], block_size=BLOCK, use_threads=len(data) > BLOCK
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types={str(i): pa.float32() if i in self.numeric else pa.string() for i in range(self.width)},
                null_values=[],
            ),
        )
        return [table.column(i) if i in self.numeric else as_text(table.column(i)) for i in self.order]

    def complaints(self, data: bytes) -> Iterator[tuple[re.Match[bytes], str]]:
        """Lines with a wrong number of fields or with a cell that should be a number and is not, and what is wrong."""
        for line in filled_lines(data):
            cells = _cells(line[0], self.delimiter)
            if len(cells) != self.width:
                yield line, f": {len(cells)} fields, but the first line has {self.width}; correct the line"
                continue
            for column in self.numeric:
                if not _is_number(cells[column]):
                    label = repr(self.names[column]) if self.names else column + 1
                    wrong = f"{cells[column]!r} is not a number; correct it, or turn a column of text into numbers"
                    empty = "the cell is empty; fill it in or leave the line out"
                    yield line, f", column {label}: {wrong if cells[column].strip() else empty}"
                    break


def text_layout(path: Path, data: bytes, keys: Sequence[frozenset[str]], numbers: bool) -> tuple[Layout, bytes] | None:
    """The layout that the first two lines of ``data`` ask for, and the clean data without its header line.

    None if there is no line. Blanked, not cut out: lines keep their numbers.
    """
    data = _without_comments(data)
    first = next(filled_lines(data), None)
    if first is None:
        return None
    delimiter = _sniff(first[0].decode())
    if delimiter == " ":
        data = _single_blanks(data)
    lines = list(islice(filled_lines(data), 2))
    rows = [_cells(line[0], delimiter) for line in lines]
    names = [cell.strip(" \t") for cell in rows[0]] if _is_header(rows, keys) else None
    if names is not None:
        data = data[: lines[0].start()] + data[lines[0].end() :]
    order = arrange(path, names, len(rows[0]), keys)
    return Layout(delimiter, names, len(rows[0]), order, sorted(order[len(keys) :] if numbers else ())), data


def line_number(data: bytes, start: int) -> int:
    """The number of the line that begins at byte ``start``, from 1."""
    return data.count(b"\n", 0, start) + data.count(b"\r", 0, start) - data.count(b"\r\n", 0, start) + 1


def read_table(path: str | Path, keys: Sequence[frozenset[str]], *, numbers: bool) -> Table:
    """Read a table with one id column (text) per key; the other columns are float32 if ``numbers``, else text."""
    path, suffix = check_path(path, TABLES)
    table = (_read_parquet if suffix == ".parquet" else _read_text)(path, keys, numbers)
    for column in table.columns[: len(keys)]:
        empty = pc.index(column, "").as_py()
        if empty >= 0:
            raise ReadError(f"{table.where(empty)}: a node id is empty; fill it in or remove the line")
    return table


def _read_text(path: Path, keys: Sequence[frozenset[str]], numbers: bool) -> Table:
    data = _read_bytes(path)
    report_comments(path, count_comments(data))
    found = text_layout(path, data, keys, numbers)
    if found is None:
        raise ReadError(f"{path} is empty; it needs at least one line that is not a comment")
    layout, data = found
    layout.report(path)
    try:
        columns = layout.parse(data)
    except pa.ArrowInvalid as error:
        line, complaint = next(layout.complaints(data), (None, f": {error}"))
        where = "" if line is None else f", line {line_number(data, line.start())}"
        raise ReadError(f"{path}{where}{complaint}") from error

    def where_is(row: int) -> str:
        return f"{path}, line {line_number(data, next(islice(filled_lines(data), row, None)).start())}"

    return Table(layout.ordered_names, columns, where_is)


def _read_parquet(path: Path, keys: Sequence[frozenset[str]], numbers: bool) -> Table:
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise ReadError(f"{path} is not a readable Parquet file: {error}") from error
    names: list[str] = table.column_names
    order = arrange(path, names, len(names), keys)
    report_ignored(path, len(names), order)
    columns = []
    for rank, column in enumerate(table.column(i) for i in order):
        try:
            columns.append(column.cast(pa.float32(), safe=False) if numbers and rank >= len(keys) else as_text(column))
        except pa.ArrowException as error:
            kind = "numbers" if numbers and rank >= len(keys) else "text or integers"
            raise ReadError(f"{path}, column {names[order[rank]]!r}: {column.type} is not {kind} ({error})") from error
    return Table([names[i] for i in order], columns, lambda row: f"{path}, row {row}")


def arrange(path: Path, names: list[str] | None, width: int, keys: Sequence[frozenset[str]]) -> list[int]:
    """Column positions, ids first: the columns named so if the header has them all, else the leading ones."""
    if width < len(keys):
        raise ReadError(f"{path}: {width} column; expected {len(keys)} or more, separated by comma, tab or blank")
    plain = [name.strip().lower() for name in names or ()]
    found = [next((i for i, name in enumerate(plain) if name in key), -1) for key in keys]
    if -1 in found:
        return list(range(width))
    index = {0} if 0 not in found and plain[0] in _PANDAS_INDEX else set()
    return found + [i for i in range(width) if i not in index.union(found)]


def _is_header(rows: list[list[str]], keys: Sequence[frozenset[str]]) -> bool:
    """The rule stated at the top of this file, on the first one or two lines."""
    names = [cell.strip().lower() for cell in rows[0]]
    if len(keys) == 1 and names[0] in keys[0] | _PANDAS_INDEX:
        return True  # also with numbers as the other names: a data frame without column names
    if any(map(_is_number, names)):
        return False
    ids, values = rows[-1][: len(keys)], rows[-1][len(keys) :]
    known = all(not key.isdisjoint(names) for key in keys)
    return known or any(cells and all(map(_is_number, cells)) for cells in (ids, values))


def report_ignored(path: Path, width: int, order: list[int]) -> None:
    if len(order) < width:
        log.info("%s: ignored 1 column, the unnamed first one (an index written by pandas)", path)


def distinct_ids(columns: Sequence[Any]) -> NDArray[Any]:
    """The different ids of some columns, in order of appearance."""
    together = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    return integers_or_text(np.array(pc.unique(together).to_pylist(), object))


def integers_or_text(texts: NDArray[Any]) -> NDArray[Any]:
    """int64 if all are plain integers ("7", "-3"; not "07", "+7", "7.0") of at most 64 bits, else as given."""
    if all(map(re.compile("0|-?[1-9][0-9]*").fullmatch, texts)):
        with contextlib.suppress(OverflowError, ValueError):
            return np.array([int(text) for text in texts], np.int64)
    return texts


def positions(column: Any, nodes: Any) -> NDArray[Any]:
    """Index of every id of ``column`` in ``nodes``, -1 where absent."""
    return np.asarray(pc.fill_null(pc.index_in(column, value_set=nodes), -1).to_numpy())


def as_text(values: Any) -> Any:
    """Numpy or Arrow values as Arrow strings, "" where missing; whole floats (integers with gaps) as integers."""
    column = pa.array(values) if isinstance(values, np.ndarray) else values
    if pa.types.is_floating(column.type):
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    return pc.utf8_trim(pc.fill_null(column.cast(pa.string()), ""), " \t")


def filled_lines(data: bytes) -> Iterator[re.Match[bytes]]:
    return re.finditer(rb"[^\r\n]+", data)


def count_comments(data: bytes) -> int:
    return len(re.findall(rb"(?m)^#", data))


def report_comments(path: Path, count: int) -> None:
    if count:
        log.info("%s: %d lines that begin with # are comments and were left out", path, count)


def _without_comments(data: bytes) -> bytes:
    return re.sub(rb"(?m)^(?:#[^\r\n]*|[ \t]+(?=[\r\n]|\Z))", b"", data)


def _cells(line: bytes, delimiter: str) -> list[str]:
    return next(csv.reader([line.decode()], delimiter=delimiter))


def _sniff(line: str) -> str:
    bare = re.sub(r'"[^"]*"', "quoted", line)
    # The more frequent one: a semicolon may come with decimal commas, a comma with semicolons in a name.
    best = "\t" if "\t" in bare else max(",;", key=bare.count)
    return best if best in bare else " " if " " in bare.strip() else ","


def _single_blanks(data: bytes) -> bytes:
    """One blank between fields, none around a line; blanks inside quotes are kept."""
    if b"  " in data or b"\t" in data:
        data = re.sub(rb'("[^"\r\n]*")|[ \t]+', lambda match: match[1] or b" ", data)
    return re.sub(rb"(?m)^ | (?=\r?$)", b"", data)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def check_path(path: str | Path, allowed: Sequence[str]) -> tuple[Path, str]:
    path = Path(path)
    suffix = "".join(path.suffixes[-2 if path.suffix.lower() == ".gz" else -1 :]).lower()
    if path.is_dir():
        raise ReadError(f"{path} is a folder; give the file in it")
    if not path.exists():
        raise ReadError(f"{path} does not exist; check the path (relative paths start at {Path.cwd()})")
    if suffix not in allowed:
        raise ReadError(f"{path}: cannot read {suffix or 'a file without extension'}; supported: {', '.join(allowed)}")
    return path, suffix


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if path.suffix.lower() == ".gz":
            data = gzip.decompress(data)
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ReadError(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8; save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ReadError(f"{path} cannot be read: {error}") from error
    return data.removeprefix(codecs.BOM_UTF8)
