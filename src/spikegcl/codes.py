"""Codes: packed bits with their node ids, as a value and as a file.

Bit t*H + h of a node is the spike of channel h at step t. A row is packed little-endian and zero padded to whole
bytes, so rows never share a byte. The file is one Arrow IPC file with the columns ``id`` and ``code``
(fixed_size_binary); it is memory-mapped on opening. pandas and polars read it as it is, DuckDB by way of
``pyarrow.dataset`` (examples/01_your_graph.py).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import bits
from spikegcl.errors import CodesError
from spikegcl.files import written_atomically

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    import torch
    from numpy.typing import NDArray

FORMAT = "spikegcl-codes"
VERSION = 1
RESERVED = ("format", "version", "bits", "steps", "channels", "checksum")
_AGAIN = "write it again with `spikegcl embed RUN -o {}`"


@dataclass(frozen=True, eq=False, repr=False)
class Codes:
    """N codes of ``steps * channels`` bits.

    ``packed`` is uint8, N x ceil(bits / 8). ``id_column`` has the N node ids as they are stored, int64 or Arrow strings
    (anything else given is converted); read them as ``ids``. ``info`` holds strings that travel with the codes
    (threshold, model hash, graph hash).

    >>> codes = Codes.from_bits(np.array([[1, 0, 1], [1, 1, 1]]), ids=["a", "b"])
    >>> codes.select(["b"]).to_numpy()
    array([[1, 1, 1]], dtype=uint8)
    """

    packed: NDArray[np.uint8]
    id_column: Any
    steps: int
    channels: int
    info: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id_column", as_id_column(self.id_column))
        if self.steps < 1 or self.channels < 1:
            raise CodesError(f"codes need at least one step and one channel, got {self.steps} and {self.channels}")
        if len(self.id_column) != len(self.packed):
            raise CodesError(f"{len(self.id_column)} ids for {len(self.packed)} codes; they must match one to one")
        bits.check_packed(self.packed, self.bits)

    def __repr__(self) -> str:
        return f"Codes({len(self)} nodes x {self.bits} bits, {self.steps} steps of {self.channels} channels)"

    @classmethod
    def from_bits(
        cls, matrix: Any, ids: Sequence[Any] | NDArray[Any] | None = None, channels: int | None = None
    ) -> Codes:
        """Pack a 0/1 matrix N x bits; ``channels`` (default: all) says how many bits make a step."""
        packed, width = bits.pack(matrix), np.shape(matrix)[1]
        channels = width if channels is None else channels
        if channels < 1 or width % channels:
            raise CodesError(f"{width} bits are not a whole number of steps of {channels} channels")
        return cls(packed, np.arange(len(packed)) if ids is None else ids, width // channels, channels)

    @property
    def bits(self) -> int:
        return self.steps * self.channels

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> Codes:
        """Codes of some rows, by number, slice, index array or mask."""
        if isinstance(rows, slice):
            return replace(self, packed=self.packed[rows], id_column=self.id_column[rows])
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        return replace(self, packed=self.packed[chosen], id_column=self.id_column.take(chosen))

    @cached_property
    def ids(self) -> NDArray[Any]:
        """Node ids (N): int64, or str in an object array. Strings become Python objects when first asked for."""
        ints = isinstance(self.id_column, np.ndarray)
        return self.id_column if ints else np.array(self.id_column.to_pylist(), dtype=object)

    @cached_property
    def positions(self) -> dict[Any, int]:
        """Row of every id."""
        rows = {key: row for row, key in enumerate(self.ids.tolist())}
        if len(rows) < len(self):
            check_unique(self.id_column, "these codes")
        return rows

    def rows(self, ids: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
        """Row numbers of these ids, in this order."""
        keys = as_id_column(ids)
        try:
            return np.array([self.positions[key] for key in keys.tolist()], dtype=np.int64)
        except KeyError as missing:
            known = f"ids look like {self.ids[:1].tolist()[0]!r}" if len(self) else "there are none at all"
            raise CodesError(f"no code has the id {missing.args[0]!r} ({len(self)} codes; {known})") from None

    def select(self, ids: Sequence[Any] | NDArray[Any]) -> Codes:
        """The codes of these ids, in this order."""
        return self[self.rows(ids)]

    def truncate(self, steps: int) -> Codes:
        """The first ``steps`` time steps of every code: a smaller code at lower accuracy, without retraining."""
        if not 1 <= steps <= self.steps:
            raise CodesError(f"cannot keep {steps} of {self.steps} steps; choose 1 to {self.steps}")
        kept = steps * self.channels
        packed = self.packed[:, : (kept + 7) // 8].copy()
        if kept % 8:
            packed[:, -1] &= np.uint8((1 << kept % 8) - 1)
        return replace(self, packed=packed, steps=steps)

    @staticmethod
    def concat(parts: Sequence[Codes]) -> Codes:
        """Codes of several node sets, one below the other; widths must agree and ids must not repeat.

        Of ``info``, only what all parts agree on is kept.
        """
        if not parts:
            raise CodesError("there are no codes to concatenate; give at least one part")
        first = parts[0]
        for part in parts[1:]:
            if (part.steps, part.channels) != (first.steps, first.channels):
                raise CodesError(
                    f"codes of {part.steps} x {part.channels} bits do not fit codes of {first.steps} x {first.channels}"
                )
        ids = as_id_column([key for part in parts for key in part.ids.tolist()])
        check_unique(ids, "the parts")
        shared = set.intersection(*(set(part.info.items()) for part in parts))
        return replace(first, packed=np.concatenate([part.packed for part in parts]), id_column=ids, info=dict(shared))

    def popcount(self) -> NDArray[np.int64]:
        """Spikes of every node (N)."""
        return bits.popcount(self.packed).astype(np.int64)

    def firing_rates(self) -> NDArray[np.float64]:
        """Share of nodes in which each bit is set (bits)."""
        return bits.ones_per_bit(self.packed, self.bits) / max(len(self), 1)

    def hamming(self, other: Codes) -> NDArray[np.int32]:
        """Differing bits of every pair: len(self) x len(other)."""
        if other.bits != self.bits:
            raise CodesError(f"cannot compare codes of {self.bits} and {other.bits} bits; use codes of one model")
        return bits.hamming(self.packed, other.packed)

    def linear(self, weight: Any, bias: Any = None) -> NDArray[np.float32]:
        """y = X W + b straight from the packed bytes: weight bits x C, bias C -> N x C (see :func:`bits.linear`).

        Round the map with :func:`bits.exact_head` first to get the very logits of a float product, bit for bit.
        """
        if np.ndim(weight) != 2 or len(weight) != self.bits:
            raise CodesError(f"codes of {self.bits} bits need a {self.bits} x C weight, got {np.shape(weight)}")
        return bits.linear(self.packed, weight, bias)

    def to_numpy(self) -> NDArray[np.uint8]:
        """Unpacked: N x bits of 0 and 1."""
        return bits.unpack(self.packed, self.bits)

    def to_torch(self) -> torch.Tensor:
        """Unpacked: float32, N x bits."""
        import torch

        return torch.from_numpy(self.to_numpy()).float()

    def to_faiss(self) -> Any:
        """An exact ``faiss.IndexBinaryFlat`` over a copy of the rows; its width counts the padding of the last byte."""
        import faiss

        index = faiss.IndexBinaryFlat(8 * self.packed.shape[1])
        index.add(np.ascontiguousarray(self.packed))
        return index

    def to_pandas(self) -> pd.DataFrame:
        """Columns ``id`` and ``code`` (bytes)."""
        import pandas as pd

        return pd.DataFrame({"id": self.ids, "code": [row.tobytes() for row in self.packed]})

    def to_arrow(self) -> Any:
        """The ``pyarrow.Table`` that is written to files."""
        import pyarrow as pa

        packed = np.ascontiguousarray(self.packed)
        kind = pa.binary(packed.shape[1])
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])
        names = pa.array(self.id_column)
        meta = {**self._described(), "checksum": self.checksum}
        return pa.Table.from_arrays([names, column], schema=pa.schema({"id": names.type, "code": kind}, metadata=meta))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Arrow IPC file, atomically."""
        import pyarrow as pa

        check_unique(self.id_column, "these codes")
        table = self.to_arrow()
        with (
            written_atomically(Path(path)) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=max(len(self), 1))

    @cached_property
    def checksum(self) -> str:
        """CRC-32 over metadata, ids and bits, as eight hex digits.

        It guards against damage, not malice: no change within 32 neighbouring bits escapes it, and of others one in
        four thousand million. Reading 64 MB takes it 18 ms; blake2b, five times slower, would not fit into opening.
        """
        value = zlib.crc32(json.dumps(self._described(), sort_keys=True).encode())
        for part in (*_id_bytes(self.id_column), np.ascontiguousarray(self.packed)):
            value = zlib.crc32(part, value)
        return f"{value:08x}"

    def _described(self) -> dict[str, str]:
        """Schema metadata but for the checksum."""
        shape = {"bits": str(self.bits), "steps": str(self.steps), "channels": str(self.channels)}
        return {**self.info, "format": FORMAT, "version": str(VERSION), **shape}


def open_codes(path: str | os.PathLike[str], *, verify: bool = True) -> Codes:
    """Open a code file memory-mapped.

    Truncated and foreign files, other versions and lengths that do not fit are always found. ``verify`` also reads
    every byte, so that a flipped bit or a repeated id is found now; without it, a repeated id is found by the first
    look-up and bits are taken as they are: a million codes of 512 bits open in 0.4 ms instead of 22 (ids that are
    strings add 8 ms, and 0.1 s when verified).
    """
    path = Path(path)
    if not path.is_file():
        raise CodesError(f"there is no code file {path}; write one with `spikegcl train` or `spikegcl embed`")
    table = _map_table(path)
    meta = _metadata(table, path)
    try:
        if missing := [key for key in RESERVED if key not in meta]:
            raise CodesError(f"its metadata lacks {', '.join(missing)}")
        info = {key: value for key, value in meta.items() if key not in RESERVED}
        codes = Codes(_code_rows(table), _file_ids(table), int(meta["steps"]), int(meta["channels"]), info)
        if meta["bits"] != str(codes.bits):
            raise CodesError(f"it says {meta['bits']!r} bits but has {codes.steps} steps of {codes.channels} channels")
        if verify and meta["checksum"] != codes.checksum:
            raise CodesError("its bits, ids or metadata do not match their checksum")
    except (CodesError, ValueError) as error:
        raise CodesError(f"{path} is damaged: {error}; {_AGAIN.format(path)}") from None
    if verify:
        check_unique(codes.id_column, str(path))
    return codes


def _map_table(path: Path) -> Any:
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CodesError(f"{path} is not a code file or is cut short ({error}); {_AGAIN.format(path)}") from None
    return table


def _metadata(table: Any, path: Path) -> dict[str, str]:
    """Schema metadata of a file of codes in this version."""
    raw = table.schema.metadata or {}
    meta = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in raw.items()}
    if meta.get("format") != FORMAT:
        raise CodesError(f"{path} is an Arrow file, but not one of codes: its schema lacks format = {FORMAT}")
    version = meta.get("version", "")
    if version != str(VERSION):
        newer = version.isdecimal() and int(version) > VERSION
        advice = "upgrade spikegcl" if newer else _AGAIN.format(path)
        raise CodesError(f"{path} has format version {version!r}, this release reads {VERSION}; {advice}")
    return meta


def _code_rows(table: Any) -> NDArray[np.uint8]:
    """The column ``code`` as N x bytes, without a copy when it is in one piece."""
    column = _column(table, "code")
    width = getattr(column.type, "byte_width", 0) if str(column.type).startswith("fixed_size_binary") else 0
    if not width:
        raise CodesError(f"its column code is {column.type}, not fixed_size_binary")
    if not len(column):
        return np.empty((0, width), np.uint8)
    flat = np.frombuffer(column.buffers()[1], np.uint8)
    flat.flags.writeable = False
    return flat[column.offset * width :][: len(column) * width].reshape(len(column), width)


def _file_ids(table: Any) -> Any:
    """The column ``id``: int64 as numpy, strings still in Arrow."""
    import pyarrow as pa

    column = _column(table, "id")
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column.validate(full=True)  # 8 ms for a million ids: text from damaged offsets would crash the process
        return column.cast(pa.string())
    raise CodesError(f"its column id is {column.type}, not integers or strings")


def _column(table: Any, name: str) -> Any:
    if table.column_names.count(name) != 1:
        raise CodesError(f"it needs one column {name!r}, and has {table.column_names}")
    chunks = table[name]
    column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()  # combining one chunk would copy it
    if column.null_count:
        raise CodesError(f"{column.null_count} entries of its column {name} are missing")
    return column


def as_id_column(ids: Any) -> Any:
    """Ids as they are kept: int64 as numpy, anything else as an Arrow array of strings."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.int64:
        return ids
    import pyarrow as pa

    if isinstance(ids, pa.StringArray):
        return ids
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)  # a tensor's elements are tensors
    if not all(isinstance(key, (int, np.integer)) and not isinstance(key, bool) for key in values):
        return pa.array([str(key) for key in values], pa.string())
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise CodesError("integer ids must fit into 64 bits with sign; give larger ones as strings") from None


def _id_bytes(ids: Any) -> tuple[Any, ...]:
    """Buffers that two id columns share exactly when they hold the same ids."""
    if isinstance(ids, np.ndarray):
        return (np.ascontiguousarray(ids),)
    if not len(ids):
        return ()
    _, ends, text = ids.buffers()
    offsets = np.frombuffer(ends, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return offsets - offsets[0], memoryview(text or b"")[offsets[0] : offsets[-1]]


def check_unique(ids: Any, where: str) -> None:
    if isinstance(ids, np.ndarray):
        if (ids[1:] > ids[:-1]).all():  # sorted ids, the usual case, at a tenth of the cost of sorting
            return
        ordered = np.sort(ids)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    else:
        import pyarrow.compute as pc

        ordered = ids.sort()  # of a million ids in 0.1 s, where counting distinct ones takes 0.3 s and more
        repeated = ordered[1:].filter(pc.equal(ordered[1:], ordered[:-1]))
    if len(repeated):
        raise CodesError(f"id {repeated[:1].tolist()[0]!r} occurs more than once in {where}; ids must be unique")
