"""The prepared graph: a folder of arrays that opens at once, mapped into memory, however large it is.

==========================  =====================================================================================
``manifest.json``           format, counts, names, the graph's hash; bytes and SHA-256 of every other file
``indptr.npy``              int64, N + 1                                            } the CSR adjacency,
``indices.npy``             int32, 2E                                               } as :class:`Graph` has it
``weights.npy``             float32, 2E, unless every edge weighs 1                 }
``features.npy``            float32, N x d: dense features; sparse ones (fewer than 25 % non-zeros) are
``features.indptr.npy``     int64, N + 1 with ``features.indices.npy`` (int32) and ``features.data.npy`` (float32)
``ids.npy``, ``ids.arrow``  node ids: int64, or a column of text
``labels.npy``              int64, N, -1 where unknown
``train.npy``, ...          the split: node indices of ``train``, ``val`` and ``test``, int64
==========================  =====================================================================================

The folder is filled under another name and renamed when it is complete: what can be opened is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from spikegcl.errors import GraphError, ReadError
from spikegcl.files import locked, write_text
from spikegcl.graph import PARTS, Graph, Split, content_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

FORMAT = "spikegcl graph"
VERSION = 2  # 1 could have edges of weight 0
MANIFEST = "manifest.json"
SPARSE = ("features.indptr.npy", "features.indices.npy", "features.data.npy")
_HEADER = 128  # bytes of the header of an array file, whatever its number of rows
_CHUNK = 1 << 22


class ArrayFile:
    """A ``.npy`` file that grows by blocks of rows; its header is written when the block ends.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> with ArrayFile(path, np.float32, width=2) as file:
    ...     file.append(np.ones((3, 2)))
    >>> np.load(path).shape
    (3, 2)
    """

    def __init__(self, path: Path, dtype: Any, width: int | None = None) -> None:
        self.dtype, self.width, self.rows = np.dtype(dtype).newbyteorder("<"), width, 0
        self._file = path.open("wb")
        self._file.write(bytes(_HEADER))

    def append(self, block: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(block, self.dtype).data.cast("B") if block.size else b"")
        self.rows += len(block)

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *failure: object) -> None:
        shape = (self.rows,) if self.width is None else (self.rows, self.width)
        entries = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        text = f"{entries}".ljust(_HEADER - 11) + "\n"
        self._file.seek(0)
        self._file.write(np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little") + text.encode())
        self._file.close()


class TextFile:
    """An Arrow file with one column of text that grows by blocks."""

    def __init__(self, path: Path) -> None:
        self._schema = pa.schema([("id", pa.large_string())])
        self._writer = pa.ipc.new_file(str(path), self._schema)

    def append(self, block: Any) -> None:
        self._writer.write_batch(pa.record_batch([pa.array(block, pa.large_string())], schema=self._schema))

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *failure: object) -> None:
        self._writer.close()


@contextlib.contextmanager
def new_prepared(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; it appears as ``path`` only when the block ends well.

    What an interrupted preparation left is cleared away when the same ``path`` is prepared again. An existing
    ``path`` is an error unless it is empty or ``force`` says to replace it, and then only a prepared graph is.
    """
    if path.resolve() == Path.cwd():
        raise GraphError(f"{path} is the folder this is started in; give the name of a folder inside it")
    occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if occupied and not (force and is_prepared(path)):
        advice = "choose another name" + (" or add --force" if is_prepared(path) else ", it is not a prepared graph")
        raise GraphError(f"{path} exists already; {advice}")
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial, GraphError):
            for left in partial.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            try:
                yield partial
                if path.exists():
                    shutil.rmtree(path)
                partial.replace(path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise GraphError(f"cannot write the prepared graph {path}: {error}") from error


def write_manifest(
    folder: Path,
    *,
    name: str,
    num_features: int,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    skipped: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Finish a folder whose array files are all written: counts, the graph's hash and the checksum of every file."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".arrow"))
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "nodes": len(_load(folder / "indptr.npy")) - 1,
        "edges": len(_load(folder / "indices.npy")) // 2,
        "features": num_features,
        "columns": None if columns is None else list(columns),
        "classes": None if classes is None else list(classes),
        "skipped": skipped or {},
        "hash": _folder_hash(folder, num_features),
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": _checksum(path)} for path in files},
    }
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def save_prepared(graph: Graph, path: str | Path, *, force: bool = False) -> None:
    """Write a graph that is in memory as a prepared folder; :func:`open_prepared` gives it back."""
    with new_prepared(Path(path), force=force) as folder:
        arrays: dict[str, Any] = {
            "indptr.npy": graph.indptr,
            "indices.npy": graph.indices,
            "weights.npy": graph.weights,
        }
        if graph.is_sparse:
            matrix = graph.features
            indptr, indices = matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False)
            arrays |= dict(zip(SPARSE, (indptr, indices, matrix.data)))
        else:
            arrays["features.npy"] = graph.features
        arrays["labels.npy"] = graph.labels
        for part in PARTS if graph.split is not None else ():
            arrays[f"{part}.npy"] = getattr(graph.split, part)
        if graph.ids.dtype.kind == "i":
            arrays["ids.npy"] = graph.ids
        else:
            with TextFile(folder / "ids.arrow") as text:
                text.append(graph.ids)
        for name, array in arrays.items():
            if array is not None:
                with ArrayFile(folder / name, array.dtype, *array.shape[1:]) as file:
                    file.append(array)
        write_manifest(
            folder, name=graph.name, num_features=graph.num_features, columns=graph.columns, classes=graph.classes
        )


def is_prepared(path: str | Path) -> bool:
    return (Path(path) / MANIFEST).is_file()


def open_prepared(path: str | Path, *, verify: bool = False) -> Graph:
    """Open a prepared graph. Arrays are mapped, read-only: pages come from the disk when they are used.

    The manifest and the size, type and shape of every file are checked; ``verify`` also reads everything and compares
    checksums. Text ids become Python strings here, all of them; integer ids are mapped like the rest.
    """
    path = Path(path)
    try:
        return _open(path, json.loads((path / MANIFEST).read_text("utf-8")), verify)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        advice = "prepare it again with `spikegcl prepare`"
        raise ReadError(f"{path} is not a whole prepared graph ({error}); {advice}") from error


def _open(folder: Path, manifest: dict[str, Any], verify: bool) -> Graph:
    if manifest["format"] != FORMAT or manifest["version"] != VERSION:
        raise ReadError(
            f"{folder} has format {manifest['format']!r}, version {manifest['version']}, and this release reads "
            f"{FORMAT!r}, version {VERSION}; prepare it again, or update spikegcl"
        )
    files: dict[str, Any] = manifest["files"]
    for name, facts in files.items():
        size = (folder / name).stat().st_size
        if size != facts["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {facts['bytes']}")
        if verify and _checksum(folder / name) != facts["sha256"]:
            raise ValueError(f"{name} does not match its checksum")

    def mapped(name: str, dtype: Any, *shape: int) -> Any:
        return _map(folder / name, dtype, shape) if name in files else None

    count, links, width = int(manifest["nodes"]), 2 * int(manifest["edges"]), int(manifest["features"])
    indptr, indices = mapped("indptr.npy", np.int64, count + 1), mapped("indices.npy", np.int32, links)
    if indptr is None or indices is None or indptr[0] != 0 or indptr[-1] != links:
        raise ValueError("indptr.npy and indices.npy do not belong together")
    features = mapped("features.npy", np.float32, count, width)
    if width and features is None:
        features = _map_sparse(folder, count, width)
    ids = mapped("ids.npy", np.int64, count)
    if ids is None:
        ids = _read_text_ids(folder / "ids.arrow", count)
    split = Split(*(_map(folder / f"{part}.npy", np.int64) for part in PARTS)) if "train.npy" in files else None
    graph = Graph(
        indptr=indptr,
        indices=indices,
        weights=mapped("weights.npy", np.float32, links),
        features=features,
        ids=ids,
        columns=None if manifest["columns"] is None else tuple(manifest["columns"]),
        labels=mapped("labels.npy", np.int64, count),
        classes=None if manifest["classes"] is None else tuple(manifest["classes"]),
        split=split,
        name=str(manifest["name"]),
    )
    graph.__dict__["hash"] = str(manifest["hash"])  # what the property would take a pass over all files to find
    return graph


def _map(path: Path, dtype: Any, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    array = _load(path).view(np.ndarray)
    if array.dtype != dtype or (shape is not None and array.shape != shape):
        raise ValueError(f"{path.name} holds {array.dtype} {array.shape} instead of {np.dtype(dtype)} {shape}")
    return array


def _map_sparse(folder: Path, count: int, width: int) -> sp.csr_array:
    indptr = _map(folder / SPARSE[0], np.int64, (count + 1,))
    filled = int(indptr[-1])
    matrix = sp.csr_array((count, width), dtype=np.float32)
    # Set one by one: the constructor would read all of them, and copy.
    matrix.indptr = indptr
    matrix.indices = _map(folder / SPARSE[1], np.int32, (filled,))
    matrix.data = _map(folder / SPARSE[2], np.float32, (filled,))
    return matrix


def _read_text_ids(path: Path, count: int) -> NDArray[Any]:
    with pa.memory_map(str(path)) as file:
        ids: NDArray[Any] = pa.ipc.open_file(file).read_all().column(0).to_numpy()
    if len(ids) != count:
        raise ValueError(f"{path.name} has {len(ids)} ids for {count} nodes")
    return ids


def blocks(path: Path) -> Iterator[NDArray[Any]]:
    """The rows of an array file, some megabytes at a time. Mapped anew for each: what was read does not stay mapped."""
    array = _load(path)
    step = max(1, _CHUNK // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), step):
        yield np.array(_load(path)[start : start + step])


def _load(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _folder_hash(folder: Path, num_features: int) -> str:
    def part(name: str) -> Any:
        return (_load(folder / name).shape, blocks(folder / name)) if (folder / name).exists() else None

    parts = [part(name) for name in ("indptr.npy", "indices.npy", "weights.npy")]
    if (folder / SPARSE[0]).exists():
        shape = np.array([len(_load(folder / "indptr.npy")) - 1, num_features])
        parts += [(shape.shape, [shape]), *map(part, SPARSE)]
    else:
        parts.append(part("features.npy"))
    return content_hash(parts, _id_blocks(folder))


def _id_blocks(folder: Path) -> Iterator[NDArray[Any]]:
    if (folder / "ids.npy").exists():
        yield from blocks(folder / "ids.npy")
        return
    with pa.OSFile(str(folder / "ids.arrow")) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number).column(0).to_numpy(zero_copy_only=False)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
