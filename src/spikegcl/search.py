"""Nearest codes by Hamming distance: exact or approximate, by code or by id, rescored if asked.

``flat`` reads every code where it lies, memory-mapped or not, with faiss's Hamming kernels: it needs no building and no
second copy. ``hnsw`` and ``ivf`` are faiss binary indexes, built once and saved beside the codes.
"""

from __future__ import annotations

import json
import mmap
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spikegcl import bits
from spikegcl.codes import Codes, open_codes
from spikegcl.errors import CodesError
from spikegcl.files import write_text, writing, written_atomically

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.shards import Shards

    Query = Codes | Sequence[Any] | NDArray[Any] | str | int
    Found = tuple[NDArray[np.int64], NDArray[Any]]

KINDS = ("flat", "hnsw", "ivf")
FORMAT = "spikegcl-index"
VERSION = 1
# Bytes of temporaries per block of queries. faiss counts candidates in one bucket per distance: (bits + 1) * k row
# numbers for every query of a call.
BUDGET = 1 << 26
# HNSW: links per node as faiss has it, and candidates in view while searching.
LINKS, IN_VIEW = 32, 64
# IVF: k-means wants about 40 codes per list, and ten rounds of it settle (training time is linear in both).
# One list in 16 is read for a query, and at least 8.
PER_LIST, ROUNDS, SHARE, LEAST = 40, 10, 16, 8


class Neighbours(NamedTuple):
    """Q x k node ids, nearest first, and their distances: int32 (differing bits), or float32 when rescored."""

    ids: NDArray[Any]
    distances: NDArray[Any]


class Searcher(ABC):
    """What every index offers: queries by code or by id, in blocks, rescored if asked."""

    codes: Codes | Shards

    @abstractmethod
    def found(self, packed: NDArray[np.uint8], k: int, effort: int | None) -> Found:
        """Rows and Hamming distances of the k nearest codes (Q x k), ties by row; k is at most the number of codes."""

    def search(self, query: Query, k: int = 10, **options: Any) -> Neighbours:
        """Ids and distances of the ``k`` nearest codes of each query; options as for :meth:`search_rows`."""
        rows, distances = self.search_rows(query, k, **options)
        return Neighbours(self.codes[rows.ravel()].ids.reshape(rows.shape), distances)

    def search_rows(
        self,
        query: Query,
        k: int = 10,
        *,
        rescore: str | NDArray[Any] | None = None,
        factor: int = 4,
        effort: int | None = None,
    ) -> Found:
        """Row numbers (Q x k) of the nearest codes, and their distances; fewer columns if there are fewer codes.

        ``query`` is codes of the same width, or ids in this index: a node is then not its own neighbour.

        ``rescore`` orders the ``factor * k`` nearest by a float distance instead. "rate": a differing bit of firing
        rate p counts 4 p (1 - p), so that bits which hardly ever or nearly always fire say little. An array of shape
        (bits,): its entries are these weights. An array of shape (bits, C): a linear head, squared distance of outputs.

        ``effort`` is the number of candidates in view (hnsw) or of lists read (ivf). A query for which an approximate
        index finds fewer than k codes is answered exactly.
        """
        if k < 1 or factor < 1:
            raise CodesError(f"k and factor must be at least 1, got {k} and {factor}")
        weight = self._weight(rescore)
        asked, own = self._asked(query)
        others = max(len(self.codes) - (own is not None), 0)
        k, wanted = min(k, others), min(k * (1 if weight is None else factor), others)
        rows = np.empty((len(asked), k), np.int64)
        distances = np.empty((len(asked), k), np.int32 if weight is None else np.float32)
        size = max(1, BUDGET // (8 * (self.codes.bits + 1) * (wanted + 1)))
        for start in range(0, len(asked) if k else 0, size):
            block = slice(start, start + size)
            packed = np.ascontiguousarray(asked[block])
            found = self._nearest(packed, wanted, None if own is None else own[block], effort)
            near, far = found if weight is None else self._rescored(packed, found[0], weight)
            rows[block], distances[block] = near[:, :k], far[:, :k]
        return rows, distances

    def _asked(self, query: Query) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
        """Packed queries (Q x bytes), and their own rows if they were asked for by id."""
        if not isinstance(query, Codes):
            ids: Any = [query] if np.ndim(query) == 0 else query
            own = self.codes.rows(ids)
            return self.codes[own].packed, own
        if query.bits != self.codes.bits:
            raise CodesError(
                f"a query of {query.bits} bits cannot search codes of {self.codes.bits} bits; "
                "make both with the same model and the same number of steps"
            )
        return query.packed, None

    def _nearest(self, packed: NDArray[np.uint8], k: int, own: NDArray[np.int64] | None, effort: int | None) -> Found:
        """Rows and Hamming distances of the k nearest codes but for the queries' own rows."""
        wanted = k + (own is not None)
        rows, distances = self.found(packed, wanted, effort)
        if own is None:
            return rows, distances
        dropped = rows == own[:, None]
        dropped[~dropped.any(1), -1] = True
        return rows[~dropped].reshape(-1, k), distances[~dropped].reshape(-1, k)

    @cached_property
    def _rate_weight(self) -> NDArray[np.float32]:
        rates = self.codes.firing_rates()
        return (4 * rates * (1 - rates)).astype(np.float32)

    def _weight(self, rescore: str | NDArray[Any] | None) -> NDArray[np.float32] | None:
        if rescore is None or isinstance(rescore, str):
            if rescore not in (None, "none", "rate"):
                raise CodesError(f"there is no rescoring {rescore!r}; choose none or rate, or give weights")
            return self._rate_weight if rescore == "rate" else None
        weight = np.asarray(rescore, np.float32)
        if weight.ndim not in (1, 2) or len(weight) != self.codes.bits:
            raise CodesError(f"codes of {self.codes.bits} bits need weights of as many rows, got {weight.shape}")
        return weight

    def _rescored(self, packed: NDArray[np.uint8], rows: NDArray[np.int64], weight: NDArray[np.float32]) -> Found:
        """Candidates (Q x K) in the order of their float distances."""
        candidates = self.codes[rows.ravel()].packed
        if weight.ndim == 1:
            differing = candidates ^ np.repeat(packed, rows.shape[1], axis=0)
            return ordered(rows, bits.linear(differing, weight[:, None]).reshape(rows.shape))
        outputs = bits.linear(candidates, weight).reshape(*rows.shape, -1)
        return ordered(rows, np.square(outputs - bits.linear(packed, weight)[:, None]).sum(2))


@dataclass(frozen=True, eq=False)
class Index(Searcher):
    """Codes that can be searched; ``structure`` is the faiss index of the kinds ``hnsw`` and ``ivf``.

    Equal distances are ordered by row. ``flat`` is exact in this too: of codes equally far away, those of the lowest
    rows are found. ``ivf`` finds the same after every build; ``hnsw`` is linked by several threads at once and may
    find slightly different neighbours after each build.

    >>> index = Index.build(Codes.from_bits([[0, 0, 1], [0, 1, 1], [1, 1, 1]], ids=["a", "b", "c"]))
    >>> index.search("a", k=2).ids
    array([['b', 'c']], dtype=object)
    """

    codes: Codes
    kind: str = "flat"
    structure: Any = None

    @classmethod
    def build(cls, codes: Codes, kind: str = "flat", *, links: int = LINKS, lists: int | None = None) -> Index:
        """Index ``codes``; ``links`` per node for hnsw, ``lists`` (default: square root of N) for ivf."""
        if kind not in KINDS:
            raise CodesError(f"there is no index kind {kind!r}; choose {', '.join(KINDS)}")
        if links < 2:
            raise CodesError(f"links = {links}: a node of an hnsw index needs at least 2 to its neighbours")
        if kind == "flat" or not len(codes):
            return cls(codes, kind)
        packed = np.ascontiguousarray(codes.packed)
        structure = _new_hnsw(packed, links) if kind == "hnsw" else _new_ivf(packed, lists)
        structure.add(packed)
        return cls(codes, kind, structure)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder: codes.arrow, index.faiss (not for ``flat``), and index.json, last, which ties them."""
        folder = Path(folder)
        with writing(folder):
            known = not folder.exists() or (folder / "index.json").is_file()
            if not known and (folder.is_file() or any(folder.iterdir())):
                raise CodesError(f"{folder} exists already and is not an index folder; choose another name")
            (folder / "index.json").unlink(missing_ok=True)
        self.codes.save(folder / "codes.arrow")
        about = {"format": FORMAT, "version": VERSION, "kind": self.kind, "codes": self.codes.checksum, "index": None}
        if self.structure is not None:
            write_faiss(folder / "index.faiss", self.structure)
            about["index"] = _file_checksum(folder / "index.faiss")
        write_text(folder / "index.json", json.dumps(about, indent=1) + "\n")

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> Index:
        """Open a saved index with all its parts memory-mapped; ``verify`` compares the checksums, reading every byte.

        faiss maps the lists of ``ivf``, and codes and links of ``hnsw`` since version 1.11; before, it reads them.
        """
        folder = Path(folder)
        about = _read_about(folder)
        codes = open_codes(folder / "codes.arrow", verify=verify)
        if verify and codes.checksum != about["codes"]:
            raise CodesError(f"{folder}: codes.arrow is not the file that was indexed; build the index again")
        structure = None
        if about["index"] is not None:
            structure = _read_faiss(folder / "index.faiss", about["kind"], about["index"] if verify else None)
            if (structure.ntotal, structure.d) != (len(codes), 8 * codes.packed.shape[1]):
                raise CodesError(f"{folder}: index.faiss and codes.arrow differ in size; build the index again")
        return cls(codes, about["kind"], structure)

    def found(self, packed: NDArray[np.uint8], k: int, effort: int | None) -> Found:
        return self._approximate(packed, k, effort) if self.structure else self._exact(packed, k)

    def _exact(self, packed: NDArray[np.uint8], k: int) -> Found:
        import faiss

        if 8 * (self.codes.bits + 1) * k > BUDGET:
            all_distances = bits.hamming(packed, self.codes.packed)
            rows = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
            return rows, np.take_along_axis(all_distances, rows, 1)
        # "mc" fills its buckets in row order, which is the order promised for ties; the heap variant promises nothing.
        distances, rows = faiss.knn_hamming(packed, np.ascontiguousarray(self.codes.packed), k, variant="mc")
        return rows, distances

    def _approximate(self, packed: NDArray[np.uint8], k: int, effort: int | None) -> Found:
        if effort is not None and not 1 <= effort < 2**31:
            raise CodesError(f"effort = {effort}; it counts nodes in view (hnsw) or lists (ivf) and starts at 1")
        if self.kind == "hnsw":
            self.structure.hnsw.efSearch = max(effort or IN_VIEW, k)
        else:
            self.structure.nprobe = effort or max(LEAST, self.structure.nlist // SHARE)
        distances, rows = self.structure.search(packed, k)
        short = (rows < 0).any(1)
        if short.any():
            rows[short], distances[short] = self._exact(packed[short], k)
        return ordered(rows, distances)


def ordered(rows: NDArray[np.int64], distances: NDArray[Any]) -> Found:
    """Each line sorted by distance, ties by row."""
    order = np.lexsort((rows, distances), axis=1)
    return np.take_along_axis(rows, order, 1), np.take_along_axis(distances, order, 1)


def _new_hnsw(packed: NDArray[np.uint8], links: int) -> Any:
    import faiss

    return faiss.IndexBinaryHNSW(8 * packed.shape[1], links)


def _new_ivf(packed: NDArray[np.uint8], lists: int | None) -> Any:
    import faiss

    most = max(1, len(packed) // PER_LIST)
    count = min(most, int(len(packed) ** 0.5)) if lists is None else lists
    if not 1 <= count <= len(packed):
        raise CodesError(f"{count} lists for {len(packed)} codes; choose 1 to {len(packed)}")
    quantizer = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index = faiss.IndexBinaryIVF(quantizer, quantizer.d, count)
    index.cp.niter, index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = ROUNDS, 1, PER_LIST
    index.train(packed)
    return index


def _read_faiss(path: Path, kind: str, checksum: str | None) -> Any:
    import faiss

    if not path.is_file() or not path.stat().st_size:
        raise CodesError(f"{path} is missing or empty; build the index again")
    if checksum is not None and _file_checksum(path) != checksum:
        raise CodesError(f"{path} does not match its checksum: the file is damaged; build the index again")
    flag = faiss.IO_FLAG_MMAP if kind == "ivf" else getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    try:
        return faiss.read_index_binary(str(path), flag)
    except RuntimeError as error:
        raise CodesError(f"faiss cannot read {path} ({error}); build the index again") from None


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    if not path.is_file():
        raise CodesError(f"{folder} is not an index folder: it has no index.json; write one with Index.save")
    try:
        about: dict[str, Any] = json.loads(path.read_text("utf-8"))
        known = about["format"] == FORMAT and about["kind"] in KINDS and {"version", "codes", "index"} <= about.keys()
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise CodesError(f"{path} does not describe an index; build the index again")
    if about["version"] != VERSION:
        raise CodesError(f"{folder} has version {about['version']}, this release reads {VERSION}; upgrade spikegcl")
    return about


def write_faiss(path: Path, structure: Any) -> None:
    """Write a binary index of faiss, atomically and through a file of ours: its own overlooks that a disk is full."""
    import faiss

    with written_atomically(path) as temporary, temporary.open("wb") as file:
        faiss.write_index_binary(structure, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]


def _file_checksum(path: Path) -> str:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return f"{zlib.crc32(content):08x}"
