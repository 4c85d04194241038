"""Files and foreign objects <-> Graph: CSV, TSV, Parquet, npy, npz, networkx, PyG, scipy.

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
import zipfile
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from spikegcl.errors import FeatureError, GraphError, LabelError, ReadError, SpikeGCLError
from spikegcl.graph import Graph, Split, build_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")

TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet")
PARTS = ("train", "val", "test")
_ARRAYS = (".npy", ".npz")

_SOURCE = frozenset({"source", "src", "from", "u", "node1", "node_1", "id1", "id_1", "head"})
_TARGET = frozenset({"target", "dst", "dest", "to", "v", "node2", "node_2", "id2", "id_2", "tail"})
_ID = frozenset({"id", "node", "node_id", "nodeid"})
# The names pandas gives to an index it writes as the first column: its numbers are neither weights nor features.
_PANDAS_INDEX = frozenset({"", "__index_level_0__"})
_PART_OF = {"train": 0, "0": 0, "val": 1, "valid": 1, "validation": 1, "1": 1, "test": 2, "2": 2, "": -1, "-1": -1}


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
    ``edges``     table of M rows: source id, target id and optionally a weight
    ``features``  table keyed by id (the column named id, node or node_id, else the first) with d numeric columns, or
                  with ids only; or by row: ``.npy`` (N x d) or scipy ``.npz`` (sparse, N x d) with node ids 0..N-1
    ``labels``    table of id, label; or ``.npy`` with N labels in node order. Nodes left out are unlabelled (-1)
    ``split``     table of id, part (train, val, valid, test); or ``.npy`` with N parts in node order. A part may also
                  be written 0, 1, 2. Nodes left out (or given "" or -1) are in no part
    ============  ====================================================================================================

    Nodes have the order of the feature file; without one they are the ids of the edge list, ascending, so that the
    order of the edges never matters.
    """
    table = _read_edges(edges)
    if features is None:
        ids, matrix, columns = np.sort(_distinct_ids(table.columns[:2])), None, None
    else:
        ids, matrix, columns = _read_features(features)
    nodes = _text(ids)
    pairs = np.stack([_positions(column, nodes) for column in table.columns[:2]])
    if features is not None:
        _check_known(table, pairs, *_stranger(features, len(ids)))
    try:
        return build_graph(
            pairs,
            matrix,
            num_nodes=len(ids),
            weights=table.columns[2].to_numpy() if len(table.columns) == 3 else None,
            ids=ids,
            columns=columns,
            labels=None if labels is None else _read_labels(labels, nodes),
            split=None if split is None else _read_split(split, nodes),
            name=name or Path(edges).name.split(".")[0],
        )
    except (FeatureError, GraphError) as error:
        raise type(error)(f"{features if isinstance(error, FeatureError) else edges}: {error}") from error


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReadError(f"{folder} cannot be created: {error}; choose another folder") from error
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


def from_networkx(
    graph: Any, features: Any = None, *, labels: str | None = None, weight: str | None = "weight"
) -> Graph:
    """A networkx graph of N nodes, in the order of ``graph.nodes``; directions and parallel edges are merged.

    ``features`` is the name of a node attribute (a number or a vector of length d on every node) or a matrix N x d.
    ``labels`` names a node attribute, unlabelled where missing; ``weight`` an edge attribute, 1 where missing.
    Integer nodes stay integers, all other node objects become strings.
    """
    index = {node: position for position, node in enumerate(graph.nodes)}
    links = list(graph.edges(data=weight, default=1.0))
    try:
        weights = np.array([link[2] for link in links], np.float32)
    except (TypeError, ValueError) as error:
        raise GraphError(f"edge attribute {weight!r} is not a number on every edge: {error}") from error
    return build_graph(
        np.array([[index[link[0]] for link in links], [index[link[1]] for link in links]], np.int64),
        _attribute_matrix(graph, features) if isinstance(features, str) else features,
        num_nodes=len(index),
        weights=weights,
        ids=list(index),
        labels=None if labels is None else _label_array([value for _, value in graph.nodes(data=labels)]),
        name=graph.name or "graph",
    )


def to_networkx(graph: Graph) -> Any:
    """An undirected ``networkx.Graph`` over the ids, as far as the graph has them with these attributes.

    Edges: ``weight``. Nodes: ``x`` (float32 vector of length d), ``y`` (class name, or integer without names; absent
    where unlabelled) and ``split`` (train, val or test).
    """
    import networkx

    result = networkx.Graph(name=graph.name)
    ids = graph.ids.tolist()
    result.add_nodes_from(ids)
    upper = sp.triu(graph.adjacency).tocoo()
    for source, target, weight in zip(upper.row.tolist(), upper.col.tolist(), upper.data.tolist(), strict=True):
        result.add_edge(ids[source], ids[target], **({} if graph.weights is None else {"weight": weight}))
    for row, node in enumerate(result.nodes.values()):
        if graph.features is not None:
            node["x"] = _dense(graph.features[[row]])[0]
        if graph.labels is not None and graph.labels[row] >= 0:
            node["y"] = int(graph.labels[row]) if graph.classes is None else graph.classes[graph.labels[row]]
    for part in PARTS if graph.split is not None else ():
        for row in getattr(graph.split, part):
            result.nodes[ids[row]]["split"] = part
    return result


def from_pyg(data: Any, *, name: str = "graph") -> Graph:
    """A PyG ``Data`` of N nodes: ``edge_index`` (2 x M), ``x`` (N x d, dense or sparse), ``y`` (N), ``train_mask`` ...

    Weights are ``edge_weight`` (M). ``ids`` and ``classes`` are taken over as :func:`to_pyg` writes them. Tensors may
    live on any device.
    """
    if getattr(data, "edge_index", None) is None:
        raise GraphError("the Data object has no edge_index; use from_scipy for an adjacency matrix")
    if getattr(data, "edge_attr", None) is not None:
        log.info("ignored edge_attr of %d edges; only edge_weight is a weight", len(data.edge_attr))
    labels = None if getattr(data, "y", None) is None else _numpy(data.y)
    if labels is not None and labels.shape[1:] == (1,):
        labels = labels[:, 0]
    if labels is not None and getattr(data, "classes", None) is not None:
        labels = np.array([*data.classes, ""], object)[labels]
    return build_graph(
        _numpy(data.edge_index),
        None if getattr(data, "x", None) is None else _numpy(data.x),
        num_nodes=data.num_nodes,
        weights=None if getattr(data, "edge_weight", None) is None else _numpy(data.edge_weight),
        ids=getattr(data, "ids", None),
        labels=labels,
        split=_split_of_masks(data),
        name=name,
    )


def to_pyg(graph: Graph, *, dense: bool = True) -> Any:
    """A PyG ``Data`` on the CPU that shares no memory with ``graph``, with what the graph has of the following.

    ``edge_index`` (2 x 2E, both directions), ``edge_weight`` (2E), ``x`` (N x d), ``y`` (N, -1 where unlabelled),
    ``train_mask``, ``val_mask``, ``test_mask`` (N, bool), ``ids`` and ``classes`` (lists). ``x`` is a dense tensor,
    which every PyG layer takes; ``dense=False`` keeps sparse features as a torch CSR tensor.
    """
    import torch
    from torch_geometric.data import Data

    links = np.stack([np.repeat(np.arange(graph.num_nodes), graph.degrees), graph.indices])
    data = Data(edge_index=torch.tensor(links), num_nodes=graph.num_nodes, ids=graph.ids.tolist())
    if graph.weights is not None:
        data.edge_weight = torch.tensor(graph.weights)
    if graph.is_sparse and not dense:
        starts, columns = torch.tensor(graph.features.indptr), torch.tensor(graph.features.indices.astype(np.int64))
        values = torch.tensor(graph.features.data)
        data.x = torch.sparse_csr_tensor(starts, columns, values, graph.features.shape, check_invariants=True)
    elif graph.features is not None:
        data.x = torch.tensor(_dense(graph.features))
    if graph.labels is not None:
        data.y = torch.tensor(graph.labels)
    if graph.classes is not None:
        data.classes = list(graph.classes)
    for part in PARTS if graph.split is not None else ():
        data[f"{part}_mask"] = torch.tensor(np.isin(np.arange(graph.num_nodes), getattr(graph.split, part)))
    return data


def from_scipy(
    adjacency: Any, features: Any = None, *, labels: Any = None, ids: Any = None, name: str = "graph"
) -> Graph:
    """A scipy sparse adjacency (N x N; its values are the weights) with features (N x d), labels (N) and ids (N)."""
    if not sp.issparse(adjacency):
        raise GraphError(f"got {type(adjacency).__name__}; make a sparse matrix of it with scipy.sparse.csr_array")
    return build_graph(adjacency, features, num_nodes=adjacency.shape[0], labels=labels, ids=ids, name=name)


def to_scipy(graph: Graph) -> sp.csr_array:
    """A copy of the symmetric adjacency (N x N, float32). Features need no conversion: see ``graph.features``."""
    return graph.adjacency.copy()


def _read_edges(path: str | Path) -> _Table:
    table = _read_table(path, (_SOURCE, _TARGET), numbers=True)
    if len(table.columns) > 3:
        raise ReadError(f"{path}: {len(table.columns)} columns; keep source, target and at most one weight")
    if len(table.columns) == 3:
        weights = table.columns[2].to_numpy()
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise ReadError(f"{table.where(int(bad[0]))}: weight {weights[bad[0]]} must be finite and not negative")
    return table


def _read_features(path: str | Path) -> tuple[NDArray[Any], Any, list[str] | None]:
    """Ids (N), matrix (N x d) or None, column names or None."""
    path, suffix = _check_path(path, (*TABLES, *_ARRAYS))
    if suffix in _ARRAYS:
        matrix = _load(path)
        if matrix.ndim != 2:
            raise FeatureError(f"{path} has shape {matrix.shape}; features are a matrix with one row per node")
        return np.arange(matrix.shape[0]), matrix, None
    table = _read_table(path, (_ID,), numbers=True)
    _check_unique(table, FeatureError)
    ids = _distinct_ids(table.columns[:1])
    if len(table.columns) == 1:
        log.info("%s has ids only: it gives the nodes and their order, no features", path)
        return ids, None, None
    matrix = np.column_stack([column.to_numpy() for column in table.columns[1:]])
    names = table.names and table.names[1:]
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        label = repr(names[column]) if names else column + 1
        raise FeatureError(
            f"{table.where(row)}: feature {label} is {matrix[row, column]}; give a finite float32 number"
        )
    # 0, 1, 2, ... for names is how a data frame without column names is written.
    return ids, matrix, None if names == [str(i) for i in range(matrix.shape[1])] else names


def _stranger(features: str | Path, count: int) -> tuple[type[SpikeGCLError], str]:
    """What to say of an edge whose id is not among the ``count`` nodes of ``features``."""
    if Path(features).suffix.lower() in _ARRAYS:
        return GraphError, f"is no row of {features} (0..{count - 1}); renumber, or key the features by id in a table"
    return FeatureError, f"has no row in {features}; add its features or remove its edges"


def _read_labels(path: str | Path, nodes: Any) -> NDArray[Any]:
    """N labels: integers with -1, or names with "", for nodes that have none."""
    path, suffix = _check_path(path, (*TABLES, ".npy"))
    if suffix == ".npy":
        return _load_per_node(path, len(nodes))
    table, rows = _read_keyed(path, nodes)
    texts = np.array(table.columns[1].to_pylist(), object)
    known = texts != ""
    values = _integers_or_text(texts[known])
    labels = np.full(len(nodes), -1 if values.dtype.kind == "i" else "", values.dtype)
    labels[rows[known]] = values
    log.info("%s: %d of %d nodes have no label", path, len(nodes) - len(values), len(nodes))
    return labels


def _read_split(path: str | Path, nodes: Any) -> Split:
    path, suffix = _check_path(path, (*TABLES, ".npy"))
    if suffix == ".npy":
        codes = _part_codes(_load_per_node(path, len(nodes)), lambda row: f"{path}, row {row}")
    else:
        table, rows = _read_keyed(path, nodes)
        codes = np.full(len(nodes), -1)
        codes[rows] = _part_codes(table.columns[1].to_pylist(), table.where)
    log.info("%s: %d of %d nodes are in no part", path, int((codes < 0).sum()), len(nodes))
    return Split(*(np.flatnonzero(codes == code) for code in range(len(PARTS))))


def _part_codes(parts: Iterable[Any], where: Callable[[int], str]) -> NDArray[np.int64]:
    """0, 1, 2 for train, val, test and -1 for no part."""
    names = [str(part).strip().lower() for part in parts]
    for row, part in enumerate(names):
        if part not in _PART_OF:
            raise LabelError(f"{where(row)}: {part!r} is no part of a split; use train, val or test")
    return np.array([_PART_OF[part] for part in names], np.int64)


def _read_keyed(path: Path, nodes: Any) -> tuple[_Table, NDArray[Any]]:
    """A table of id and value, and the node index of each of its rows."""
    table = _read_table(path, (_ID,), numbers=False)
    if len(table.columns) != 2:
        raise ReadError(f"{path}: {len(table.columns)} columns; keep two, the node id and its value")
    _check_unique(table, LabelError)
    rows = _positions(table.columns[0], nodes)
    _check_known(table, rows[None], LabelError, "is not a node of the graph; correct it or remove its line")
    return table, rows


def _load_per_node(path: Path, count: int) -> NDArray[Any]:
    values: NDArray[Any] = _load(path)
    if values.shape != (count,):
        raise LabelError(f"{path} has shape {values.shape}; expected one value for each of the {count} nodes")
    return values.astype(str) if values.dtype.kind == "S" else values


def _check_known(table: _Table, positions: NDArray[Any], error: type[SpikeGCLError], advice: str) -> None:
    """Raise ``error`` if an id has no node: ``positions`` (id columns x rows) is -1 there."""
    unknown = positions < 0
    if unknown.any():
        texts = np.stack([column.to_pylist() for column in table.columns[: len(positions)]], dtype=object)
        count = len(set(texts[unknown]))
        row = int(unknown.any(axis=0).argmax())
        example = texts[unknown[:, row].argmax(), row]
        more = f"{count} such id{'s' if count > 1 else ''} in this file"
        raise error(f"{table.where(row)}: node id {example!r} {advice} ({more})")


def _check_unique(table: _Table, error: type[SpikeGCLError]) -> None:
    seen: dict[str, int] = {}
    for row, node in enumerate(table.columns[0].to_pylist()):
        if seen.setdefault(node, row) != row:
            raise error(
                f"{table.where(row)}: node id {node!r} is already at {table.where(seen[node])}; keep one of them"
            )


def _distinct_ids(columns: Sequence[Any]) -> NDArray[Any]:
    """The different ids of some columns, in order of appearance."""
    import pyarrow as pa
    import pyarrow.compute as pc

    together = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    return _integers_or_text(np.array(pc.unique(together).to_pylist(), object))


def _integers_or_text(texts: NDArray[Any]) -> NDArray[Any]:
    """int64 if all are plain integers ("7", "-3"; not "07", "+7", "7.0") of at most 64 bits, else as given."""
    if all(map(re.compile("0|-?[1-9][0-9]*").fullmatch, texts)):
        with contextlib.suppress(OverflowError, ValueError):
            return np.array([int(text) for text in texts], np.int64)
    return texts


def _positions(column: Any, nodes: Any) -> NDArray[Any]:
    """Index of every id of ``column`` in ``nodes``, -1 where absent."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.index_in(column, value_set=nodes), -1).to_numpy())


def _write_csv(path: Path, columns: dict[str, NDArray[Any]]) -> Path:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # Arrow quotes every string, so that an id "#1" is not taken for a comment.
    table = {name: pa.array(cells, pa.string() if cells.dtype == object else None) for name, cells in columns.items()}
    arrow_csv.write_csv(pa.table(table), path)
    return path


def _write_features(folder: Path, graph: Graph) -> Path:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if graph.is_sparse and graph.columns is None and np.array_equal(graph.ids, np.arange(graph.num_nodes)):
        sp.save_npz(folder / "features.npz", graph.features)
        return folder / "features.npz"
    kind = pa.string() if graph.ids.dtype == object else pa.int64()
    names = graph.columns or [str(i) for i in range(graph.num_features)]
    schema = pa.schema([("id", kind), *((name, pa.float32()) for name in names)])
    # In blocks, so that sparse features are never dense all at once.
    step = max(1, (1 << 24) // max(1, graph.num_features))
    with arrow_csv.CSVWriter(folder / "features.csv", schema) as writer:
        for rows in (slice(start, start + step) for start in range(0, graph.num_nodes, step)):
            block = np.zeros((0, 0)) if graph.features is None else _dense(graph.features[rows])
            arrays = [pa.array(graph.ids[rows], kind), *map(pa.array, block.T)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return folder / "features.csv"


def _dense(features: Any) -> Any:
    return features.toarray() if sp.issparse(features) else features


def _attribute_matrix(graph: Any, attribute: str) -> NDArray[np.float32]:
    """A node attribute of a networkx graph as a matrix N x d."""
    lacking = [node for node, value in graph.nodes(data=attribute) if value is None]
    if lacking:
        raise FeatureError(f"{len(lacking)} nodes have no attribute {attribute!r}, e.g. {lacking[0]!r}; set it on all")
    try:
        values = np.array([value for _, value in graph.nodes(data=attribute)], np.float32)
    except (TypeError, ValueError) as error:
        raise FeatureError(f"attribute {attribute!r} is not a vector of one length on all nodes: {error}") from error
    return values[:, None] if values.ndim == 1 else values


def _label_array(values: Sequence[Any]) -> NDArray[Any]:
    if all(value is None or isinstance(value, (int, np.integer)) for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    return np.array(["" if value is None else str(value) for value in values], object)


def _split_of_masks(data: Any) -> Split | None:
    masks = [getattr(data, f"{part}_mask", None) for part in PARTS]
    for part, mask in zip(PARTS, masks, strict=True):
        if mask is not None and tuple(mask.shape) != (data.num_nodes,):
            raise LabelError(f"{part}_mask has shape {tuple(mask.shape)} for {data.num_nodes} nodes; choose one split")
    if all(mask is None for mask in masks):
        return None
    return Split(*(np.zeros(0, np.int64) if mask is None else np.flatnonzero(_numpy(mask)) for mask in masks))


def _numpy(tensor: Any) -> Any:
    """A torch tensor as a numpy array or, if it is sparse, as scipy CSR."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()
    if str(tensor.layout) == "torch.strided":
        return tensor.numpy()
    tensor = tensor.to_sparse_coo().coalesce()
    return sp.csr_array((tensor.values().numpy(), tuple(tensor.indices().numpy())), shape=tuple(tensor.shape))


@dataclass(frozen=True)
class _Table:
    """Columns of a file as Arrow arrays, ids first, and the way back from a row to the place a user can look at."""

    names: list[str] | None
    columns: list[Any]
    where: Callable[[int], str]


@dataclass(frozen=True)
class _Lines:
    """A delimited text file: its bytes with comments blanked, separator and header."""

    path: Path
    data: bytes
    delimiter: str
    names: list[str] | None

    def filled(self) -> Iterator[re.Match[bytes]]:
        """The lines with data."""
        return islice(_filled_lines(self.data), int(self.names is not None), None)

    def where(self, row: int) -> str:
        start = next(islice(self.filled(), row, None)).start()
        return f"{self.path}, line {len(self.data[:start].splitlines()) + 1}"

    def complaint(self, width: int, numeric: Collection[int]) -> str | None:
        """The first line with a wrong number of fields or with a cell that should be a number and is not."""
        for row, line in enumerate(self.filled()):
            cells = _cells(line[0], self.delimiter)
            if len(cells) != width:
                return f"{self.where(row)}: {len(cells)} fields, but the first line has {width}; correct the line"
            for column in numeric:
                if not _is_number(cells[column]):
                    label = repr(self.names[column]) if self.names else column + 1
                    return f"{self.where(row)}, column {label}: {cells[column]!r} is not a number; correct the line"
        return None


def _read_table(path: str | Path, keys: Sequence[frozenset[str]], *, numbers: bool) -> _Table:
    """Read a table with one id column (text) per key; the other columns are float32 if ``numbers``, else text."""
    import pyarrow.compute as pc

    path, suffix = _check_path(path, TABLES)
    table = (_read_parquet if suffix == ".parquet" else _read_text)(path, keys, numbers)
    for column in table.columns[: len(keys)]:
        empty = pc.index(column, "").as_py()
        if empty >= 0:
            raise ReadError(f"{table.where(empty)}: a node id is empty; fill it in or remove the line")
    return table


def _read_text(path: Path, keys: Sequence[frozenset[str]], numbers: bool) -> _Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # Blanked, not cut out: line numbers in messages stay those of the file.
    data = re.sub(rb"(?m)^(?:#[^\r\n]*|[ \t]+(?=[\r\n]|\Z))", b"", _read_bytes(path))
    first = next(_filled_lines(data), None)
    if first is None:
        raise ReadError(f"{path} is empty; it needs at least one line that is not a comment")
    delimiter = _sniff(first[0].decode())
    if delimiter == " ":
        data = _single_blanks(data)
    head = [line[0] for line in islice(_filled_lines(data), 2)]
    rows = [_cells(line, delimiter) for line in head]
    lines = _Lines(path, data, delimiter, [cell.strip(" \t") for cell in rows[0]] if _is_header(rows, keys) else None)
    if lines.names is not None:
        log.info("%s: the first line (%s) is read as a header", path, ", ".join(lines.names[:5]))
    width = len(rows[0])
    order = _arrange(path, lines.names, width, keys)
    numeric = set(order[len(keys) :] if numbers else ())
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data.lstrip(b"\r\n")[len(head[0]) if lines.names else 0 :] or b"\n"),
            # A line must fit into a block, and a line of features may be long.
            read_options=arrow_csv.ReadOptions(column_names=[str(i) for i in range(width)], block_size=1 << 26),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types={str(i): pa.float32() if i in numeric else pa.string() for i in range(width)},
                null_values=[],
            ),
        )
    except pa.ArrowInvalid as error:
        raise ReadError(lines.complaint(width, sorted(numeric)) or f"{path}: {error}") from error
    columns = [table.column(i) if i in numeric else _text(table.column(i)) for i in order]
    return _Table(lines.names and [lines.names[i] for i in order], columns, lines.where)


def _read_parquet(path: Path, keys: Sequence[frozenset[str]], numbers: bool) -> _Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise ReadError(f"{path} is not a readable Parquet file: {error}") from error
    names: list[str] = table.column_names
    order = _arrange(path, names, len(names), keys)
    columns = []
    for rank, column in enumerate(table.column(i) for i in order):
        try:
            columns.append(column.cast(pa.float32(), safe=False) if numbers and rank >= len(keys) else _text(column))
        except pa.ArrowException as error:
            kind = "numbers" if numbers and rank >= len(keys) else "text or integers"
            raise ReadError(f"{path}, column {names[order[rank]]!r}: {column.type} is not {kind} ({error})") from error
    return _Table([names[i] for i in order], columns, lambda row: f"{path}, row {row}")


def _arrange(path: Path, names: list[str] | None, width: int, keys: Sequence[frozenset[str]]) -> list[int]:
    """Column positions, ids first: the columns named so if the header has them all, else the leading ones."""
    if width < len(keys):
        raise ReadError(f"{path}: {width} column; expected {len(keys)} or more, separated by comma, tab or blank")
    plain = [name.strip().lower() for name in names or ()]
    found = [next((i for i, name in enumerate(plain) if name in key), -1) for key in keys]
    if -1 in found:
        return list(range(width))
    index = {0} if 0 not in found and plain[0] in _PANDAS_INDEX else set()
    if index:
        log.info("%s: ignored 1 column, the unnamed first one (an index written by pandas)", path)
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


def _text(values: Any) -> Any:
    """Numpy or Arrow values as Arrow strings, "" where missing; whole floats (integers with gaps) as integers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pa.array(values) if isinstance(values, np.ndarray) else values
    if pa.types.is_floating(column.type):
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    return pc.utf8_trim(pc.fill_null(column.cast(pa.string()), ""), " \t")


def _filled_lines(data: bytes) -> Iterator[re.Match[bytes]]:
    return re.finditer(rb"[^\r\n]+", data)


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


def _check_path(path: str | Path, allowed: Sequence[str]) -> tuple[Path, str]:
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
