"""Files <-> Graph: an edge list with features, labels and a split (what a table may look like is in tables.py)."""

from __future__ import annotations

import logging
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from pyarrow import csv as arrow_csv

from spikegcl.errors import FeatureError, GraphError, LabelError, ReadError
from spikegcl.files import written_atomically
from spikegcl.graph import PARTS, Graph, Split, build_graph
from spikegcl.prepared import is_prepared, open_prepared
from spikegcl.tables import TABLES, Table, as_text, check_path, distinct_ids, integers_or_text, positions, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")

MISSING = {"NA", "N/A", "NaN", "nan", "null", "NULL", "None"}  # no label, as other programs write it

_ARRAYS = (".npy", ".npz")
SOURCE = frozenset({"source", "src", "from", "u", "node1", "node_1", "id1", "id_1", "head"})
TARGET = frozenset({"target", "dst", "dest", "to", "v", "node2", "node_2", "id2", "id_2", "tail"})
WEIGHT = frozenset({"weight", "weights", "w", "value"})
ID = frozenset({"id", "node", "node_id", "nodeid"})
PART_OF = {"train": 0, "0": 0, "val": 1, "valid": 1, "validation": 1, "1": 1, "test": 2, "2": 2, "": -1, "-1": -1}


def read_graph(
    edges: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    split: str | Path | None = None,
    name: str | None = None,
) -> Graph:
    """Read a graph of N nodes from an edge list and, if given, features, labels and a split.

    ============  ====================================================================================================
    ``edges``     table of M rows: source id, target id and optionally a weight, whatever the third column is called;
                  or a folder that ``spikegcl prepare`` made, which has its features with it and is mapped, not read
    ``features``  table keyed by id (the column named id, node or node_id, else the first) with d numeric columns, or
                  with ids only; or by row: ``.npy`` (N x d) or scipy ``.npz`` (sparse, N x d) with node ids 0..N-1
    ``labels``    table of id, label; or ``.npy`` with N labels in node order. Nodes left out are unlabelled (-1)
    ``split``     table of id, part (train, val, valid, test); or ``.npy`` with N parts in node order. A part may also
                  be written 0, 1, 2. Nodes left out (or given "" or -1) are in no part
    ============  ====================================================================================================

    Nodes have the order of the feature file; without one they are the ids of the edge list, ascending, so that the
    order of the edges never matters.
    """
    if Path(edges).is_dir():
        return _open_folder(Path(edges), features, labels, split)
    table = _read_edges(edges)
    if features is None:
        ids, matrix, columns = np.sort(distinct_ids(table.columns[:2])), None, None
        _warn_of_header(table)
    else:
        ids, matrix, columns = _read_features(features)
    nodes = as_text(ids)
    pairs = np.stack([positions(column, nodes) for column in table.columns[:2]])
    if features is not None and Path(features).suffix.lower() in _ARRAYS:
        advice = f"is no row of {features} (0..{len(ids) - 1}); renumber, or key the features by id in a table"
        table.check_known(pairs, GraphError, advice)
    elif features is not None:
        table.check_known(pairs, FeatureError, f"has no row in {features}; add its features or remove its edges")
    try:
        return build_graph(
            pairs,
            matrix,
            num_nodes=len(ids),
            weights=table.columns[2].to_numpy() if len(table.columns) == 3 else None,
            ids=ids,
            columns=columns,
            labels=None if labels is None else read_labels(labels, ids),
            split=None if split is None else read_split(split, ids),
            name=name or Path(edges).name.split(".")[0],
        )
    except (FeatureError, GraphError) as error:
        raise type(error)(f"{features if isinstance(error, FeatureError) else edges}: {error}") from error


def read_labels(path: str | Path, ids: NDArray[Any], *, ignore_unknown: bool = False) -> NDArray[Any]:
    """N labels for the N nodes called ``ids`` (int64 or str), from a file as :func:`read_graph` takes it.

    They are what ``build_graph(labels=...)`` takes: integers with -1, or names with "", for nodes that have none.
    An id that is not in ``ids`` is an error; with ``ignore_unknown`` only if none is, and else counted in the log.
    """
    path, suffix = check_path(path, (*TABLES, ".npy"))
    if suffix == ".npy":
        return _load_per_node(path, len(ids))
    table, rows = _read_keyed(path, ids, ignore_unknown)
    texts = np.array(table.columns[1].to_pylist(), object)
    known = (texts != "") & (rows >= 0)
    values = integers_or_text(texts[known])
    labels = np.full(len(ids), -1 if values.dtype.kind == "i" else "", values.dtype)
    labels[rows[known]] = values
    unknown = np.count_nonzero((labels < 0) if values.dtype.kind == "i" else (labels == ""))
    if unknown:
        log.info("%s: %d of %d nodes have no label (empty, or a negative number)", path, unknown, len(ids))
    warn_of_missing(path, values)
    return labels


def warn_of_missing(path: Path, names: Iterable[Any]) -> None:
    """Say so if a class is called what other programs write for a value that is missing."""
    if found := sorted({str(name) for name in names} & MISSING):
        log.warning("%s: %s is taken for the name of a class; leave the cell empty where there is none", path, found[0])


def read_split(path: str | Path, ids: NDArray[Any], *, ignore_unknown: bool = False) -> Split:
    """The split of the N nodes called ``ids`` (int64 or str), from a file as :func:`read_graph` takes it.

    ``ignore_unknown`` as in :func:`read_labels`.
    """
    path, suffix = check_path(path, (*TABLES, ".npy"))
    if suffix == ".npy":
        codes = _part_codes(_load_per_node(path, len(ids)), lambda row: f"{path}, row {row}")
    else:
        table, rows = _read_keyed(path, ids, ignore_unknown)
        codes = np.full(len(ids), -1)
        codes[rows[rows >= 0]] = _part_codes(table.columns[1].to_pylist(), table.where)[rows >= 0]
    log.info("%s: %d of %d nodes are in no part", path, int((codes < 0).sum()), len(ids))
    return Split(*(np.flatnonzero(codes == code) for code in range(len(PARTS))))


def write_graph(graph: Graph, folder: str | Path) -> dict[str, Path]:
    """Write ``graph`` so that ``read_graph(**write_graph(graph, folder))`` has the same nodes, order and hash.

    ``edges.csv`` has each undirected edge once. ``features.csv`` is keyed by id and exact in float32 (ids only when
    there are no features); sparse features without column names whose ids are 0..N-1 go to ``features.npz`` instead.
    ``labels.csv`` has the labelled nodes, by class name if there are names, ``split.csv`` the nodes of the split.
    Strings that all look like integers come back as integers.
    """
    folder = Path(folder)
    for value in (*graph.ids, *(graph.classes or ()), *(graph.columns or ())):
        # A cell of CSV does not bring these back.
        if isinstance(value, str) and re.search(r"^$|^[ \t]|[ \t]$|[\r\n\ud800-\udfff]", value):
            raise GraphError(f"{value!r} cannot be written to CSV (empty, blank at an end or line break); rename it")
    source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    once = source < graph.indices
    links = {"source": graph.ids[source[once]], "target": graph.ids[graph.indices[once]]}
    if graph.weights is not None:
        links["weight"] = graph.weights[once]
    written = {"edges": _write_csv(folder / "edges.csv", links), "features": _write_features(folder, graph)}
    if graph.labels is not None:
        known = graph.labels >= 0
        values = graph.labels if graph.classes is None else np.array([*graph.classes, ""], object)[graph.labels]
        written["labels"] = _write_csv(folder / "labels.csv", {"id": graph.ids[known], "label": values[known]})
    if graph.split is not None:
        parts = np.repeat(np.array(PARTS, object), [len(getattr(graph.split, part)) for part in PARTS])
        members = np.concatenate([graph.split.train, graph.split.val, graph.split.test])
        written["split"] = _write_csv(folder / "split.csv", {"id": graph.ids[members], "part": parts})
    return written


def _open_folder(folder: Path, features: Any, labels: Any, split: Any) -> Graph:
    """A prepared graph, with other labels or another split if they are given."""
    if not is_prepared(folder):
        raise ReadError(f"{folder} is a folder, and not a prepared graph; give an edge list, or `spikegcl prepare` it")
    if features is not None:
        raise FeatureError(f"{folder} has been prepared with its features; leave {features} out, or prepare it anew")
    graph = open_prepared(folder)
    if labels is not None:
        graph = graph.with_labels(read_labels(labels, graph.ids), graph.split)
    return graph if split is None else replace(graph, split=read_split(split, graph.ids))


def _read_edges(path: str | Path) -> Table:
    table = read_table(path, (SOURCE, TARGET), numbers=True)
    if len(table.columns) > 3:
        raise ReadError(f"{path}: {len(table.columns)} columns; keep source, target and at most one weight")
    if len(table.columns) == 3:
        weights = table.columns[2].to_numpy()
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise ReadError(f"{table.where(int(bad[0]))}: weight {weights[bad[0]]} must be finite and not negative")
        if len(weights):
            report_weights(path, table.names, weights.min(), weights.max())
    return table


def report_weights(path: str | Path, names: list[str] | None, low: float, high: float) -> None:
    """Say what an edge list has as weights; warn if the name of their column says that they are something else."""
    column = f"column {names[2]!r}" if names else "the third column"
    text = f"{path}: {column} is read as edge weight ({low:g} to {high:g})"
    if names and names[2].strip().lower() not in WEIGHT:
        log.warning("%s; drop the column if it is no weight, else name it weight", text)
    else:
        log.info(text)


def _warn_of_header(table: Table) -> None:
    """Say so if the first line, read as an edge, may be a header of names that are not known: no other line has them.

    Where there are features, a name without a row is an error anyway.
    """
    names = [name for column in table.columns[:2] for name in column[:1].to_pylist()]
    if table.names is not None or any(name.isdecimal() for name in names) or len(table.columns[0]) < 2:
        return
    uses = sum(pc.sum(pc.is_in(column, value_set=pa.array(names))).as_py() for column in table.columns[:2])
    if uses == len(set(names)) == 2:
        advice = "have this edge and no other; if they name the columns, call them source and target"
        log.warning("%s: the nodes %s and %s %s", table.where(0), *names, advice)


def _read_features(path: str | Path) -> tuple[NDArray[Any], Any, list[str] | None]:
    """Ids (N), matrix (N x d) or None, column names or None."""
    path, suffix = check_path(path, (*TABLES, *_ARRAYS))
    if suffix in _ARRAYS:
        matrix = _load(path)
        if matrix.ndim != 2:
            raise FeatureError(f"{path} has shape {matrix.shape}; features are a matrix with one row per node")
        return np.arange(matrix.shape[0]), matrix, None
    table = read_table(path, (ID,), numbers=True)
    table.check_unique(FeatureError)
    ids = distinct_ids(table.columns[:1])
    if len(table.columns) == 1:
        log.info("%s has ids only: it gives the nodes and their order, no features", path)
        return ids, None, None
    matrix = np.column_stack([column.to_numpy() for column in table.columns[1:]])
    names = table.names and table.names[1:]
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        label = repr(names[column]) if names else column + 1
        raise FeatureError(
            f"{table.where(row)}: feature {label} is {matrix[row, column]} as a float of 32 bits, which end at 3.4e38; "
            "give a finite number, or scale the column"
        )
    # 0, 1, 2, ... for names is how a data frame without column names is written.
    return ids, matrix, None if names == [str(i) for i in range(matrix.shape[1])] else names


def _read_keyed(path: Path, ids: NDArray[Any], ignore_unknown: bool) -> tuple[Table, NDArray[Any]]:
    """A table of id and value, and the node index of each of its rows (-1 where an unknown id is to be ignored)."""
    table = read_table(path, (ID,), numbers=False)
    if len(table.columns) != 2:
        raise ReadError(f"{path}: {len(table.columns)} columns; keep two, the node id and its value")
    table.check_unique(LabelError)
    rows = positions(table.columns[0], as_text(ids))
    if ignore_unknown and (rows >= 0).any():
        if unknown := int((rows < 0).sum()):
            log.info("%s: %d lines are about nodes that are not here, and ignored", path, unknown)
    else:
        table.check_known(rows[None], LabelError, "is not a node of the graph; correct it or remove its line")
    return table, rows


def _load_per_node(path: Path, count: int) -> NDArray[Any]:
    values: NDArray[Any] = _load(path)
    if values.shape != (count,):
        raise LabelError(f"{path} has shape {values.shape}; expected one value for each of the {count} nodes")
    return values.astype(str) if values.dtype.kind == "S" else values


def _part_codes(parts: Iterable[Any], where: Callable[[int], str]) -> NDArray[np.int64]:
    """0, 1, 2 for train, val, test and -1 for no part."""
    names = [str(part).strip().lower() for part in parts]
    for row, part in enumerate(names):
        if part not in PART_OF:
            raise LabelError(f"{where(row)}: {part!r} is no part of a split; use train, val or test")
    return np.array([PART_OF[part] for part in names], np.int64)


def _load(path: Path) -> Any:
    """A dense array from ``.npy`` or a CSR matrix from scipy's ``.npz``; never a pickle."""
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        matrix = sp.load_npz(path)
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
        return sp.csr_array(matrix)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        maker = "numpy.save, numbers or strings only" if path.suffix.lower() == ".npy" else "scipy.sparse.save_npz"
        raise ReadError(f"{path} cannot be read: {error}; write it with {maker}") from error


def _write_csv(path: Path, columns: dict[str, NDArray[Any]]) -> Path:
    # Arrow quotes every string, so that an id "#1" is not taken for a comment.
    table = {name: pa.array(cells, pa.string() if cells.dtype == object else None) for name, cells in columns.items()}
    with written_atomically(path) as temporary, temporary.open("wb") as file:
        arrow_csv.write_csv(pa.table(table), file)
    return path


def _write_features(folder: Path, graph: Graph) -> Path:
    if graph.is_sparse and graph.columns is None and np.array_equal(graph.ids, np.arange(graph.num_nodes)):
        path = folder / "features.npz"
        with written_atomically(path) as temporary, temporary.open("wb") as file:
            sp.save_npz(file, graph.features)
        return path
    kind = pa.string() if graph.ids.dtype == object else pa.int64()
    names = graph.columns or [str(i) for i in range(graph.num_features)]
    schema = pa.schema([("id", kind), *((name, pa.float32()) for name in names)])
    features: Any = np.zeros((graph.num_nodes, 0)) if graph.features is None else graph.features
    # In blocks, so that sparse features are never dense all at once.
    step = max(1, (1 << 24) // max(1, graph.num_features))
    path = folder / "features.csv"
    with (
        written_atomically(path) as temporary,
        temporary.open("wb") as file,
        arrow_csv.CSVWriter(file, schema) as writer,
    ):
        for rows in (slice(start, start + step) for start in range(0, graph.num_nodes, step)):
            block = features[rows].toarray() if graph.is_sparse else features[rows]
            arrays = [pa.array(graph.ids[rows], kind), *map(pa.array, block.T)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return path
