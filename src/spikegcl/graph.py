"""The graph: one frozen value that everything else is a function of."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from spikegcl.errors import FeatureError, GraphError, LabelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

log = logging.getLogger("spikegcl")

# Features with a smaller share of non-zeros are kept as CSR, others as a dense array, whatever the caller passed:
# one content has one representation, so that sparse and dense input give the same codes bit for bit.
SPARSE_BELOW = 0.25
PARTS = ("train", "val", "test")
IDS_AT_ONCE = 1 << 16
UNUSED_CLASSES = 64  # integer labels are class numbers unless they leave so many out, and more than they use


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint node indices for training, validation and test, each int64 and ascending.

    Masks become indices, and ``nodes`` is how many nodes they are for.
    """

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    nodes: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        sizes = set()
        for part in PARTS:
            nodes = np.asarray(getattr(self, part))
            if nodes.ndim != 1:
                raise LabelError(f"the {part} part has shape {nodes.shape}; give the indices of its nodes, or one mask")
            if nodes.dtype == bool:
                sizes.add(len(nodes))
                nodes = np.flatnonzero(nodes)
            object.__setattr__(self, part, np.sort(np.asarray(nodes, np.int64)))
        if len(sizes) > 1:
            raise LabelError(f"the masks of the split have lengths {sorted(sizes)}; give one entry for every node")
        object.__setattr__(self, "nodes", max(sizes, default=None))
        nodes = np.concatenate([self.train, self.val, self.test])
        if len(np.unique(nodes)) != len(nodes):
            raise LabelError("the split puts some node in two parts; train, val and test must be disjoint")

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify the split in every result row."""
        digest = hashlib.sha256()
        for part in (self.train, self.val, self.test):
            digest.update(str(len(part)).encode() + b":" + part.astype("<i8").tobytes())
        return digest.hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected attributed graph of N nodes.

    Build one with :func:`build_graph` (or a reader); the constructor trusts its arguments.

    ==============  ==========================================================================================
    ``indptr``      int64, N + 1: row starts of the CSR adjacency
    ``indices``     int32, 2E: neighbours, ascending within a row; symmetric, no self-loops, no duplicates
    ``weights``     float32, 2E, or None when every edge weighs 1
    ``features``    float32, N x d: dense array or scipy CSR (fewer than 25 % non-zeros), or None
    ``ids``         N node ids as the user gave them: int64 or str
    ``columns``     names of the d feature columns, or None
    ``labels``      int64, N, -1 where unknown, or None
    ``classes``     class names by label value, or None
    ``split``       the dataset's own split, or None
    ==============  ==========================================================================================
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    ids: NDArray[Any]
    weights: NDArray[np.float32] | None = None
    features: Any = None
    columns: tuple[str, ...] | None = None
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    split: Split | None = None
    name: str = "graph"

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Directed edges, i.e. twice the number of undirected ones (the way PyG counts)."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        return 0 if self.features is None else int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        if self.classes is not None:
            return len(self.classes)
        return 0 if self.labels is None else int(self.labels.max(initial=-1)) + 1

    @property
    def is_sparse(self) -> bool:
        """Whether the features are kept as CSR."""
        return bool(sp.issparse(self.features))

    @property
    def degrees(self) -> NDArray[np.int64]:
        return np.diff(self.indptr)

    @property
    def adjacency(self) -> sp.csr_array:
        """The adjacency as a scipy CSR array of float32 (a view of this graph's index arrays)."""
        data = np.ones(self.num_edges, np.float32) if self.weights is None else self.weights
        return sp.csr_array((data, self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes))

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits over structure, weights, features and ids: two graphs with equal content agree."""
        parts: list[Any] = [self.indptr, self.indices, self.weights]
        if self.is_sparse:
            matrix = self.features
            parts += [
                np.array(matrix.shape),
                matrix.indptr.astype(np.int64, copy=False),
                matrix.indices.astype(np.int32, copy=False),
                matrix.data,
            ]
        else:
            parts.append(self.features)
        return content_hash([None if part is None else (part.shape, [part]) for part in parts], [self.ids])

    def with_features(self, features: Any, columns: Sequence[str] | None = None) -> Graph:
        """This graph with other features (checked)."""
        return replace(
            self, features=check_features(features, self.num_nodes), columns=_check_columns(columns, features)
        )

    def with_labels(self, labels: Any, split: Split | None = None) -> Graph:
        """This graph with other labels (integers with -1 for unknown, or any names) and optionally a split."""
        values, classes = encode_labels(labels, self.num_nodes)
        return replace(self, labels=values, classes=classes, split=_check_split(split, self.num_nodes))

    def subgraph(self, nodes: Any) -> Graph:
        """The graph induced by ``nodes`` (indices, in the given order). The split is dropped."""
        nodes = np.asarray(nodes)
        if nodes.dtype == bool:
            raise GraphError("a subgraph is named by node indices, not by a mask; give np.flatnonzero(mask)")
        nodes = nodes.astype(np.int64)
        if len(nodes) == 0 or nodes.min() < 0 or nodes.max() >= self.num_nodes or len(np.unique(nodes)) != len(nodes):
            raise GraphError(
                f"a subgraph needs distinct node indices in 0..{self.num_nodes - 1}; got {len(nodes)} of them"
            )
        adjacency = self.adjacency[nodes][:, nodes]
        adjacency.sort_indices()
        unit = self.weights is None or bool(np.all(adjacency.data == 1))
        return replace(
            self,
            indptr=adjacency.indptr.astype(np.int64),
            indices=adjacency.indices.astype(np.int32),
            weights=None if unit else adjacency.data.astype(np.float32),
            features=None if self.features is None else check_features(self.features[nodes], len(nodes)),
            ids=self.ids[nodes],
            labels=None if self.labels is None else self.labels[nodes],
            split=None,
        )

    def __repr__(self) -> str:
        kind = "no" if self.features is None else "sparse" if self.is_sparse else "dense"
        links = f"{self.num_edges // 2} undirected {'edges' if self.weights is None else 'weighted edges'}"
        sizes = f"{self.num_nodes} nodes, {links}, {self.num_features} {kind} features"
        return f"Graph({self.name}: {sizes}, {self.num_classes} classes)"


def content_hash(
    parts: Iterable[tuple[tuple[int, ...], Iterable[NDArray[Any]]] | None], ids: Iterable[NDArray[Any]]
) -> str:
    """:attr:`Graph.hash` of arrays that come in blocks: the shape of each and its blocks, and blocks of ids."""
    digest = hashlib.sha256()
    for part in parts:
        if part is None:
            digest.update(b"|")
            continue
        shape, blocks = part
        digest.update(str(tuple(shape)).encode())
        for block in blocks:
            digest.update(np.ascontiguousarray(block).data)
    glue = ""
    for names in ids:
        for start in range(0, len(names), IDS_AT_ONCE):
            digest.update((glue + "\n".join(map(str, names[start : start + IDS_AT_ONCE].tolist()))).encode())
            glue = "\n"
    return digest.hexdigest()[:12]


def build_graph(
    edges: Any,
    features: Any = None,
    *,
    num_nodes: int | None = None,
    weights: Any = None,
    ids: Any = None,
    columns: Sequence[str] | None = None,
    labels: Any = None,
    split: Split | None = None,
    name: str = "graph",
) -> Graph:
    """Check everything and build a :class:`Graph`.

    ``edges`` is an integer array of shape 2 x M or M x 2 with node indices (a 2 x 2 array is read as 2 x M: sources
    above targets), or a scipy sparse adjacency. Edges are symmetrised; duplicates (the largest weight wins, so
    repeating a line changes nothing), self-loops and edges of weight 0 are removed, with their counts in the log.
    ``num_nodes`` defaults to the size of an adjacency, else to the rows of ``features``, else to the largest index + 1.

    >>> build_graph([[0, 1, 1], [1, 2, 2]], num_nodes=4)
    Graph(graph: 4 nodes, 2 undirected edges, 0 no features, 0 classes)
    """
    source, target, weight = _edge_arrays(edges, weights)
    if sp.issparse(edges):
        if num_nodes not in (None, edges.shape[0]):
            raise GraphError(f"num_nodes = {num_nodes}, but the adjacency has {edges.shape[0]} rows; leave it out")
        num_nodes = edges.shape[0]
    if features is not None and not hasattr(features, "shape"):
        features = np.asarray(features)
    known = features.shape[0] if features is not None and num_nodes is None else num_nodes
    count = int(known) if known is not None else int(max(source.max(initial=-1), target.max(initial=-1))) + 1
    if count == 0:
        raise GraphError("the graph has no nodes; give at least one edge or a feature row")
    if count > np.iinfo(np.int32).max:
        raise GraphError(f"{count} nodes do not fit 32-bit node indices")
    if len(source):
        low, high = min(source.min(), target.min()), max(source.max(), target.max())
        if low < 0 or high >= count:
            raise GraphError(
                f"edges name node {low if low < 0 else high}, but nodes run from 0 to {count - 1}; "
                "fix the edge list or give more feature rows"
            )
    indptr, indices, kept = _symmetric_csr(source, target, weight, count)
    identity = _check_ids(ids, count)
    values, classes = encode_labels(labels, count) if labels is not None else (None, None)
    return Graph(
        indptr=indptr,
        indices=indices,
        weights=kept,
        features=None if features is None else check_features(features, count),
        columns=_check_columns(columns, features),
        ids=identity,
        labels=values,
        classes=classes,
        split=_check_split(split, count),
        name=name,
    )


def _edge_arrays(edges: Any, weights: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32] | None]:
    if sp.issparse(edges):
        if edges.shape[0] != edges.shape[1]:
            raise GraphError(f"an adjacency matrix must be square, got {edges.shape[0]} x {edges.shape[1]}")
        if weights is not None:
            raise GraphError("an adjacency matrix holds its own weights; give no others, or edges as pairs of nodes")
        coo = edges.tocoo()
        data = None if np.all(coo.data == 1) else np.asarray(coo.data, np.float32)
        source, target, weight = coo.row, coo.col, data
    else:
        pairs = np.asarray(edges)
        if pairs.size == 0:
            pairs = np.zeros((2, 0), np.int64)
        if pairs.ndim != 2 or 2 not in pairs.shape:
            raise GraphError(
                f"edges must be 2 x M or M x 2 node indices or a sparse adjacency, got shape {pairs.shape}"
            )
        if not np.issubdtype(pairs.dtype, np.integer):
            raise GraphError(
                f"edges must be integer node indices, got {pairs.dtype}; "
                "read files with spikegcl.readers to keep other ids"
            )
        if pairs.shape == (2, 2):
            log.info("edges are 2 x 2: read as sources above targets; transpose them if they are two pairs of nodes")
        source, target = pairs if pairs.shape[0] == 2 else pairs.T
        weight = None if weights is None else np.asarray(weights, np.float32)
    if weight is not None:
        if len(weight) != len(source):
            raise GraphError(f"{len(weight)} weights for {len(source)} edges; they must match one to one")
        if not np.all(np.isfinite(weight)) or (weight < 0).any():
            bad = int(np.flatnonzero(~np.isfinite(weight) | (weight < 0))[0])
            raise GraphError(f"edge {bad} has weight {weight[bad]}; weights must be finite and not negative")
    return source, target, weight


def _symmetric_csr(
    source: NDArray[Any], target: NDArray[Any], weight: NDArray[np.float32] | None, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32] | None]:
    loops = source == target
    removed = loops if weight is None else loops | (weight == 0)
    if removed.any():
        report_removed(int(loops.sum()), int(removed.sum() - loops.sum()))
        source, target = source[~removed], target[~removed]
        weight = None if weight is None else weight[~removed]
    low, high = np.minimum(source, target).astype(np.int64), np.maximum(source, target).astype(np.int64)
    pair = low * count + high
    if weight is None:
        pair = sorted_unique(pair)
    else:
        order = np.lexsort((-weight, pair))
        pair, first = np.unique(pair[order], return_index=True)
        weight = weight[order][first]
    if len(low) > len(pair):
        log.info("%d edge lines describe %d undirected edges (both directions or repeats)", len(low), len(pair))
    low, high = pair // count, pair % count
    data = np.ones(len(pair), np.float32) if weight is None else weight
    matrix = sp.coo_array(
        (np.concatenate([data, data]), (np.concatenate([low, high]), np.concatenate([high, low]))), shape=(count, count)
    ).tocsr()
    matrix.sort_indices()
    unit = weight is None or bool(np.all(weight == 1))
    return (
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        None if unit else matrix.data.astype(np.float32),
    )


def report_removed(loops: int, empty: int) -> None:
    """Count in the log the lines that are no edges."""
    for count, kind in ((loops, "self-loops"), (empty, "edges of weight 0")):
        if count:
            log.info("removed %d %s", count, kind)


def sorted_unique(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """``np.unique`` by sorting; numpy 2.3 and later hash whole numbers, measured 60 times slower on 7.5 million."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def check_features(features: Any, count: int) -> Any:
    """Features as float32, finite, one row per node, in the representation their density asks for."""
    if len(getattr(features, "shape", ())) != 2:
        raise FeatureError(
            f"features must be a matrix with one row per node, got shape {getattr(features, 'shape', None)}"
        )
    if features.shape[0] != count:
        raise FeatureError(f"{features.shape[0]} feature rows for {count} nodes; give exactly one row per node")
    if features.shape[1] == 0:
        raise FeatureError("features have no columns; leave them out to use structural features")
    sparse = sp.issparse(features)
    raw = features if sparse else _as_array(features)
    if raw.dtype.kind not in "fiub":
        raise FeatureError(f"features must be numbers, got {raw.dtype}")
    # float32 and summed first: a finite float64 can be infinite there, and a repeated sparse entry is one non-zero.
    matrix: Any
    with np.errstate(over="ignore"):
        matrix = sp.csr_array(raw, dtype=np.float32, copy=True) if sparse else np.ascontiguousarray(raw, np.float32)
    if sparse:
        matrix.sum_duplicates()
    values = matrix.data if sparse else matrix
    if not np.all(np.isfinite(values)):
        bad = int(np.flatnonzero(~np.isfinite(values).ravel())[0])
        where = matrix.tocoo() if sparse else None
        row, column = (where.row[bad], where.col[bad]) if where is not None else divmod(bad, features.shape[1])
        raise FeatureError(
            f"feature row {row}, column {column} is {values.ravel()[bad]}; replace NaN and infinities before training"
        )
    filled = np.count_nonzero(values) / (features.shape[0] * features.shape[1])
    if filled >= SPARSE_BELOW:
        return matrix.toarray() if sparse else matrix
    matrix = sp.csr_array(matrix)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    matrix.indptr, matrix.indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    return matrix


def _as_array(features: Any) -> NDArray[Any]:
    """A table of pandas as numbers, NaN where one is missing; by itself it makes objects of columns that differ."""
    if not hasattr(features, "iloc"):
        return np.asarray(features)
    for name, dtype in features.dtypes.items():
        if dtype.kind not in "fiub":
            raise FeatureError(f"feature column {name!r} is {dtype}; turn it into numbers or leave it out")
    with np.errstate(over="ignore"):
        values: NDArray[Any] = features.to_numpy(np.float32, na_value=np.nan)
    return values


def features_of(graph: Graph) -> Any:
    """The features of a graph, which must have some: float32, N x d, dense or CSR."""
    if graph.features is None:
        raise FeatureError("the graph has no features; give some, or use spikegcl.structural_features(graph)")
    return graph.features


def are_class_numbers(labels: Sequence[int] | NDArray[np.int64]) -> bool:
    """Whether distinct integer labels, in order, count classes; years or codes leave most numbers out.

    >>> are_class_numbers([0, 1, 2, 5]), are_class_numbers([2018, 2019, 2020])
    (True, False)
    """
    return not len(labels) or int(labels[-1]) < 2 * len(labels) + UNUSED_CLASSES


def encode_labels(labels: Any, count: int) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Labels as integers with -1 for unknown.

    Names (anything but integers), and integers too large to be class numbers, become classes in sorted order.
    """
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) != count:
        raise LabelError(f"labels must be one value per node: got shape {values.shape} for {count} nodes")
    if values.dtype.kind == "f" and np.all(np.isnan(values) | (values == np.floor(values))):
        values = np.where(np.isnan(values), -1, values).astype(np.int64)
    if values.dtype.kind in "iub":
        numbers = np.where(values < 0, -1, values).astype(np.int64)
        classes, encoded = np.unique(numbers[numbers >= 0], return_inverse=True)
        if are_class_numbers(classes):
            return numbers, None
        numbers[numbers >= 0] = encoded
        return numbers, tuple(map(str, classes.tolist()))
    unknown = np.array([value is None or value == "" or value != value for value in values])
    names = np.array(["" if missing else str(value) for value, missing in zip(values, unknown, strict=True)])
    classes, encoded = np.unique(names[~unknown], return_inverse=True)
    result = np.full(count, -1, np.int64)
    result[~unknown] = encoded
    return result, tuple(classes.tolist())


def _check_ids(ids: Any, count: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(count, dtype=np.int64)
    raw = ids.tolist() if hasattr(ids, "tolist") else list(ids)  # a tensor's elements are tensors
    if len(raw) != count:
        raise GraphError(f"{len(raw)} ids for {count} nodes; give exactly one id per node")
    integers = all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in raw)
    if integers and all(-(2**63) <= value < 2**63 for value in raw):
        values = np.array(raw, dtype=np.int64)
    else:
        values = np.array([str(value) for value in raw], dtype=object)
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) != count:
        raise GraphError(f"node id {unique[counts > 1][0]!r} occurs more than once; ids must be unique")
    return values


def _check_split(split: Split | None, count: int) -> Split | None:
    if split is not None and split.nodes not in (None, count):
        raise LabelError(f"the masks of the split are for {split.nodes} nodes, and the graph has {count}")
    for part in PARTS if split is not None else ():
        nodes = getattr(split, part)
        outside = nodes[(nodes < 0) | (nodes >= count)]
        if len(outside):
            raise LabelError(
                f"the {part} part of the split names node {outside[0]}, but nodes run from 0 to {count - 1}; "
                "give the positions of nodes in the graph, not their ids"
            )
    return split


def _check_columns(columns: Sequence[str] | None, features: Any) -> tuple[str, ...] | None:
    """Names of the feature columns: those given, else those of a DataFrame if all are text."""
    own = getattr(features, "columns", None)
    if columns is None and own is not None and all(isinstance(name, str) for name in own):
        columns = list(own)
    if columns is None or features is None:
        return None
    names = tuple(map(str, columns))
    if len(names) != features.shape[1]:
        raise FeatureError(f"{len(names)} column names for {features.shape[1]} feature columns")
    if len(set(names)) != len(names):
        raise FeatureError("feature column names must be unique")
    return names
