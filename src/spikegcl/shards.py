"""Codes in several files: joined by a manifest, opened memory-mapped, searched as one collection.

The manifest is a small JSON file beside the code files of one model. Row numbers run on from shard to shard, in the
order of the manifest, as if the files stood one below the other.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.bits import ones_per_bit
from spikegcl.codes import Codes, as_id_column, check_unique, open_codes
from spikegcl.errors import CodesError
from spikegcl.files import write_text
from spikegcl.search import Index, Searcher, ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from spikegcl.search import Found

FORMAT = "spikegcl-shards"
VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Shards:
    """Codes of one collection in parts, which are never copied together.

    Parts have the same steps and channels and ids of one type, numbers or strings; where they name their model, it is
    the same. That no id is in two parts is checked by :func:`open_shards`, or by :meth:`check_ids`.

    >>> halves = Shards((Codes.from_bits([[0, 1]], ids=["a"]), Codes.from_bits([[1, 1]], ids=["b"])))
    >>> halves.rows(["b", "a"]).tolist(), halves[[1]].to_numpy().tolist()
    ([1, 0], [[1, 1]])
    """

    parts: tuple[Codes, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise CodesError("there are no shards; give at least one code file")
        first = self.parts[0]
        for number, part in enumerate(self.parts[1:], 1):
            if (part.steps, part.channels) != (first.steps, first.channels):
                raise CodesError(
                    f"shard {number} has codes of {part.steps} x {part.channels} bits, shard 0 of "
                    f"{first.steps} x {first.channels}; join shards of one model only"
                )
            if part.info.get("model") != first.info.get("model"):
                raise CodesError(f"shard {number} comes from another model than shard 0; join shards of one model only")
            if type(part.id_column) is not type(first.id_column):
                raise CodesError(f"one of the shards 0 and {number} has numbers as ids and the other strings")

    def __repr__(self) -> str:
        return f"Shards({len(self)} nodes x {self.bits} bits in {len(self.parts)} parts)"

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def bits(self) -> int:
        return self.parts[0].bits

    @property
    def info(self) -> dict[str, str]:
        """What all parts say alike."""
        return dict(set.intersection(*(set(part.info.items()) for part in self.parts)))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First row of every part, and last the number of all rows."""
        return np.cumsum([0, *map(len, self.parts)])

    def __getitem__(self, rows: Any) -> Codes:
        """A copy of some rows, by number, slice, index array or mask."""
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        home = np.searchsorted(self.starts, chosen, side="right") - 1
        taken = [part[chosen[home == n] - self.starts[n]] for n, part in enumerate(self.parts)]
        back = np.argsort(np.argsort(home, kind="stable"), kind="stable")
        packed = np.concatenate([part.packed for part in taken])[back]
        return replace(self.parts[0], packed=packed, id_column=_joined(taken).take(back), info=self.info)

    def rows(self, ids: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
        """Row numbers of these ids, in this order."""
        keys = as_id_column(ids).tolist()
        found = {
            key: start + part.positions[key]
            for start, part in zip(self.starts, self.parts, strict=False)
            for key in keys
            if key in part.positions
        }
        if missing := [key for key in keys if key not in found]:
            raise CodesError(f"no code has the id {missing[0]!r} ({len(self)} codes in {len(self.parts)} shards)")
        return np.array([found[key] for key in keys], dtype=np.int64)

    def firing_rates(self) -> NDArray[np.float64]:
        """Share of nodes in which each bit is set (bits)."""
        counts = sum((ones_per_bit(part.packed, part.bits) for part in self.parts), np.zeros(self.bits, np.int64))
        return counts / max(len(self), 1)

    def check_ids(self) -> None:
        """Find an id that is in two parts."""
        check_unique(_joined(self.parts), "the shards")


def write_manifest(path: str | os.PathLike[str], files: Iterable[str | os.PathLike[str]]) -> Shards:
    """Join code files into one collection: check them, write the manifest atomically, return the opened shards.

    Files are named relative to the manifest, so the folder can be moved as a whole.
    """
    path, files = Path(path), [Path(file) for file in files]
    shards = Shards(tuple(open_codes(file) for file in files))
    shards.check_ids()
    entries = [
        {"file": os.path.relpath(file, path.parent), "rows": len(part), "checksum": part.checksum}
        for file, part in zip(files, shards.parts, strict=True)
    ]
    about = {"format": FORMAT, "version": VERSION, "bits": shards.bits, "rows": len(shards), "shards": entries}
    write_text(path, json.dumps(about, indent=1) + "\n")
    return shards


def open_shards(path: str | os.PathLike[str], *, verify: bool = True) -> Shards:
    """Open the shards of a manifest memory-mapped.

    Missing, foreign and truncated files and lengths that do not fit are always found; ``verify`` also reads every byte
    and every id, as :func:`~spikegcl.codes.open_codes` does, and compares the checksums of the manifest.
    """
    path = Path(path)
    entries = _entries(path)
    parts = tuple(open_codes(path.parent / entry["file"], verify=verify) for entry in entries)
    for entry, part in zip(entries, parts, strict=True):
        if len(part) != entry["rows"] or (verify and part.checksum != entry["checksum"]):
            raise CodesError(
                f"{path.parent / entry['file']} is not the file that {path} joined; write the shards again"
            )
    shards = Shards(parts)
    if verify:
        shards.check_ids()
    return shards


def _entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a manifest: file, rows, checksum."""
    try:
        about = json.loads(path.read_text("utf-8"))
        entries: list[dict[str, Any]] = about["shards"]
        known = about["format"] == FORMAT and all({"file", "rows", "checksum"} <= entry.keys() for entry in entries)
    except OSError as error:
        raise CodesError(f"cannot read the manifest {path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise CodesError(f"{path} is not a manifest of code shards; write one with spikegcl.shards.write_manifest")
    if about["version"] != VERSION:
        raise CodesError(f"{path} has version {about['version']}, this release reads {VERSION}; upgrade spikegcl")
    return entries


def _joined(parts: Sequence[Codes]) -> Any:
    """The id columns one below the other."""
    columns = [part.id_column for part in parts]
    if isinstance(columns[0], np.ndarray):
        return np.concatenate(columns)
    import pyarrow as pa

    return pa.concat_arrays(columns)


@dataclass(frozen=True, eq=False)
class ShardedIndex(Searcher):
    """One :class:`~spikegcl.search.Index` a shard; their answers are merged.

    ``flat`` finds exactly what one index over all rows finds, ties included: equal distances are ordered by row, and
    rows run on from shard to shard.
    """

    codes: Shards
    indexes: tuple[Index, ...]

    @classmethod
    def of(cls, indexes: Sequence[Index]) -> ShardedIndex:
        """Join indexes, in this order."""
        return cls(Shards(tuple(index.codes for index in indexes)), tuple(indexes))

    @classmethod
    def build(cls, shards: Shards, kind: str = "flat") -> ShardedIndex:
        """Index every part by itself; kinds as for :meth:`Index.build`."""
        return cls(shards, tuple(Index.build(part, kind) for part in shards.parts))

    @property
    def kind(self) -> str:
        return self.indexes[0].kind

    def found(self, packed: NDArray[np.uint8], k: int, effort: int | None) -> Found:
        answers = [
            (start + rows, distances)
            for start, index in zip(self.codes.starts, self.indexes, strict=False)
            if len(index.codes)
            for rows, distances in [index.found(packed, min(k, len(index.codes)), effort)]
        ]
        rows, distances = ordered(*(np.concatenate(part, axis=1) for part in zip(*answers, strict=True)))
        return rows[:, :k], distances[:, :k]
