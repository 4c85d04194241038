"""Codes: packed bits with their node ids, as a value and as a file.

Bit t*H + h of a node is the spike of channel h at step t. A row is packed little-endian and zero padded to whole
bytes, so rows never share a byte. The file is one Arrow IPC file with the columns ``id`` and ``code``
(fixed_size_binary); it is memory-mapped on opening, and pandas, polars and DuckDB read it as it is.
"""

from __future__ import annotations

import hashlib
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


@dataclass(frozen=True, eq=False)
class Codes:
    """N codes of ``steps * channels`` bits.

    ``packed`` is uint8, N x ceil(bits / 8); ``ids`` has N unique node ids (int64 or str); ``info`` holds strings that
    travel with the codes (threshold, model hash, graph hash).

    >>> codes = Codes.from_bits(np.array([[1, 0, 1], [1, 1, 1]]), ids=["a", "b"])
    >>> codes.select(["b"]).to_numpy()
    array([[1, 1, 1]], dtype=uint8)
    """

    packed: NDArray[np.uint8]
    ids: NDArray[Any]
    steps: int
    channels: int
    info: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.channels < 1:
            raise CodesError(f"codes need at least one step and one channel, got {self.steps} and {self.channels}")
        width = (self.bits + 7) // 8
        if self.packed.ndim != 2 or self.packed.dtype != np.uint8 or self.packed.shape[1] != width:
            raise CodesError(
                f"{self.bits} bits need uint8 rows of {width} bytes, got {self.packed.dtype} {self.packed.shape}"
            )
        if len(self.ids) != len(self.packed):
            raise CodesError(f"{len(self.ids)} ids for {len(self.packed)} codes; they must match one to one")
        if self.bits % 8 and len(self.packed) and (self.packed[:, -1] >> (self.bits % 8)).any():
            raise CodesError("padding bits behind the last bit of a row must be zero")

    @classmethod
    def from_bits(
        cls, matrix: NDArray[Any], ids: Sequence[Any] | NDArray[Any] | None = None, channels: int | None = None
    ) -> Codes:
        """Pack a 0/1 matrix N x bits; ``channels`` (default: all) says how many bits make a step."""
        matrix = np.asarray(matrix)
        channels = channels or matrix.shape[1]
        if matrix.shape[1] % channels:
            raise CodesError(f"{matrix.shape[1]} bits are not a whole number of steps of {channels} channels")
        names = np.arange(len(matrix)) if ids is None else _id_array(ids)
        return cls(bits.pack(matrix), names, matrix.shape[1] // channels, channels)

    @property
    def bits(self) -> int:
        return self.steps * self.channels

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> Codes:
        """A subset of rows by slice, index array or mask."""
        if isinstance(rows, (int, np.integer)):
            rows = [rows]
        return replace(self, packed=self.packed[rows], ids=self.ids[rows])

    @cached_property
    def positions(self) -> dict[Any, int]:
        """Row of every id."""
        return {key: row for row, key in enumerate(self.ids.tolist())}

    def select(self, ids: Sequence[Any] | NDArray[Any]) -> Codes:
        """The codes of these ids, in this order."""
        try:
            rows = [self.positions[key] for key in _id_array(ids).tolist()]
        except KeyError as missing:
            raise CodesError(f"no code for id {missing.args[0]!r}") from None
        return self[np.array(rows, dtype=np.int64)]

    def truncate(self, steps: int) -> Codes:
        """The first ``steps`` time steps of every code: a smaller code at lower accuracy, without retraining."""
        if not 1 <= steps <= self.steps:
            raise CodesError(f"cannot keep {steps} of {self.steps} steps")
        kept = steps * self.channels
        packed = self.packed[:, : (kept + 7) // 8].copy()
        if kept % 8:
            packed[:, -1] &= np.uint8((1 << kept % 8) - 1)
        return replace(self, packed=packed, steps=steps)

    @staticmethod
    def concat(parts: Sequence[Codes]) -> Codes:
        """Codes of several node sets, one below the other; widths must agree and ids must not repeat."""
        if not parts:
            raise CodesError("nothing to concatenate")
        first = parts[0]
        for part in parts[1:]:
            if (part.steps, part.channels) != (first.steps, first.channels):
                raise CodesError(
                    f"codes of {part.steps} x {part.channels} bits do not fit codes of {first.steps} x {first.channels}"
                )
        ids = _id_array([key for part in parts for key in part.ids.tolist()])
        _check_unique(ids, "the parts")
        return replace(first, packed=np.concatenate([part.packed for part in parts]), ids=ids)

    def popcount(self) -> NDArray[np.int64]:
        """Spikes of every node (N)."""
        return bits.popcount(self.packed).astype(np.int64)

    def firing_rates(self) -> NDArray[np.float64]:
        """Share of nodes in which each bit is set (bits)."""
        return self.to_numpy().mean(0) if len(self) else np.zeros(self.bits)

    def hamming(self, other: Codes) -> NDArray[np.int32]:
        """Differing bits of every pair: len(self) x len(other)."""
        if other.bits != self.bits:
            raise CodesError(f"cannot compare codes of {self.bits} and {other.bits} bits")
        return bits.hamming(self.packed, other.packed)

    def to_numpy(self) -> NDArray[np.uint8]:
        """Unpacked: N x bits of 0 and 1."""
        return bits.unpack(self.packed, self.bits)

    def to_torch(self) -> torch.Tensor:
        """Unpacked: float32, N x bits."""
        import torch

        return torch.from_numpy(self.to_numpy()).float()

    def to_pandas(self) -> pd.DataFrame:
        """Columns ``id`` and ``code`` (bytes)."""
        import pandas as pd

        return pd.DataFrame({"id": self.ids, "code": [row.tobytes() for row in self.packed]})

    def to_arrow(self) -> Any:
        """The table that is written to files."""
        import pyarrow as pa

        packed = np.ascontiguousarray(self.packed)
        kind = pa.binary(packed.shape[1])
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])
        names = pa.array(self.ids.tolist(), pa.int64() if self.ids.dtype.kind in "iu" else pa.string())
        meta = {
            **self.info,
            "format": FORMAT,
            "version": str(VERSION),
            "bits": str(self.bits),
            "steps": str(self.steps),
            "channels": str(self.channels),
            "content": content_hash(packed),
        }
        schema = pa.schema([("id", names.type), ("code", kind)], metadata=meta)
        return pa.Table.from_arrays([names, column], schema=schema)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Arrow IPC file, atomically."""
        import pyarrow as pa

        table = self.to_arrow().combine_chunks()
        with (
            written_atomically(Path(path)) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=max(len(self), 1))


def content_hash(packed: NDArray[np.uint8]) -> str:
    """Sixteen hex digits over the packed bytes, checked by ``open_codes(..., verify=True)``."""
    return hashlib.blake2b(packed.data if packed.size else b"", digest_size=8).hexdigest()


def open_codes(path: str | os.PathLike[str], *, verify: bool = True) -> Codes:
    """Open a code file memory-mapped. ``verify`` also reads every byte to compare the content hash."""
    import pyarrow as pa

    path = Path(path)
    if not path.is_file():
        raise CodesError(f"there is no code file {path}; write one with `spikegcl train` or `spikegcl embed`")
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        ids, column = table["id"], table["code"].combine_chunks()
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise CodesError(f"{path} is not a code file or is cut short ({error}); write it again") from None
    meta = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if meta.get("format") != FORMAT:
        raise CodesError(f"{path} is an Arrow file, but not one of codes: its schema lacks format = {FORMAT}")
    if meta.get("version") != str(VERSION):
        raise CodesError(
            f"{path} has format version {meta.get('version')}, this release reads {VERSION}; upgrade spikegcl"
        )
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    try:
        steps, channels = int(meta["steps"]), int(meta["channels"])
        width = column.type.byte_width
        packed = np.frombuffer(column.buffers()[1] or b"", np.uint8)[column.offset * width :][: len(column) * width]
        packed = packed.reshape(len(column), width)
    except (KeyError, ValueError, AttributeError) as error:
        raise CodesError(f"{path} has damaged metadata or rows ({error}); write it again") from None
    reserved = {"format", "version", "bits", "steps", "channels", "content"}
    names = ids.to_numpy() if pa.types.is_integer(ids.type) else np.array(ids.to_pylist(), dtype=object)
    codes = Codes(packed, names, steps, channels, {key: value for key, value in meta.items() if key not in reserved})
    if meta.get("bits") != str(codes.bits):
        raise CodesError(
            f"{path} says {meta.get('bits')} bits but {steps} steps of {channels} channels; write it again"
        )
    if verify:
        _check_unique(names, str(path))
        if content_hash(packed) != meta.get("content"):
            raise CodesError(f"the bits in {path} do not match their checksum: the file is damaged; write it again")
    return codes


def _id_array(ids: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    values = list(ids)
    if all(isinstance(key, (int, np.integer)) for key in values):
        return np.array(values, dtype=np.int64)
    return np.array([str(key) for key in values], dtype=object)


def _check_unique(ids: NDArray[Any], where: str) -> None:
    if len(ids) > 1:
        ordered = np.sort(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise CodesError(f"id {twice[0]!r} occurs more than once in {where}; ids must be unique")
