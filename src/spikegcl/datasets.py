"""Named graphs: the benchmark sets of the paper, one bundled graph, one generated family, and their splits."""

from __future__ import annotations

import io
import logging
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from spikegcl.downloads import RAW_FILES, find_data_root, find_files, load_pickle, obtain_files, read_pinned
from spikegcl.errors import ConfigError, LabelError, ReadError
from spikegcl.graph import Graph, Split, build_graph, sorted_unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from spikegcl.downloads import RawFiles

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "available",
    "find_data_root",
    "is_dataset",
    "load_dataset",
    "make_split",
    "stochastic_block_model",
]

log = logging.getLogger("spikegcl")


@dataclass(frozen=True)
class DatasetInfo:
    """One row of ``spikegcl datasets``.

    ============  ==================================================================================
    ``kind``      how it comes: ``planetoid``, ``npz``, ``ogb`` (files), ``bundled``, ``generated``
    ``edges``     directed, i.e. twice the undirected ones, without self-loops and duplicates
    ``folder``    where its files live below the data root; empty when there are none
    ``split``     what :func:`make_split` gives when it is not told otherwise
    ``options``   keywords :func:`load_dataset` takes for it
    ============  ==================================================================================
    """

    name: str
    title: str
    kind: str
    nodes: int
    edges: int
    features: int
    classes: int
    folder: str
    split: str
    options: tuple[str, ...] = ()


_FULL, _RANDOM, _TIME = "Planetoid full", "stratified 1:1:8 per seed", "OGB by time"
_SBM_OPTIONS = ("nodes", "classes", "degree", "homophily", "num_features", "active", "signal", "seed")

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo("cora", "Cora citations", "planetoid", 2708, 10556, 1433, 7, "Cora/raw", _FULL),
        DatasetInfo("citeseer", "CiteSeer citations", "planetoid", 3327, 9104, 3703, 6, "CiteSeer/raw", _FULL),
        DatasetInfo("pubmed", "PubMed citations", "planetoid", 19717, 88648, 500, 3, "PubMed/raw", _FULL),
        DatasetInfo("computers", "Amazon Computers", "npz", 13752, 491722, 767, 10, "Computers/raw", _RANDOM),
        DatasetInfo("photo", "Amazon Photo", "npz", 7650, 238162, 745, 8, "Photo/raw", _RANDOM),
        DatasetInfo("cs", "Coauthor CS", "npz", 18333, 163788, 6805, 15, "CS/raw", _RANDOM),
        DatasetInfo("physics", "Coauthor Physics", "npz", 34493, 495924, 8415, 5, "Physics/raw", _RANDOM),
        DatasetInfo(
            "ogbn-arxiv", "arXiv citations", "ogb", 169343, 2315598, 128, 40, "ogbn_arxiv", _TIME, ("features",)
        ),
        DatasetInfo(
            "ogbn-mag", "MAG paper citations", "ogb", 736389, 10792672, 128, 349, "ogbn_mag", _TIME, ("features",)
        ),
        DatasetInfo("digits", "Handwritten digits, kNN graph", "bundled", 1797, 24678, 64, 10, "", _RANDOM),
        DatasetInfo("sbm", "Stochastic block model", "generated", 10_000, 150_000, 128, 8, "", _RANDOM, _SBM_OPTIONS),
    )
}


def load_dataset(
    name: str,
    data_root: str | Path | None = None,
    seed: int = 0,
    *,
    download: bool = True,
    **options: Any,
) -> Graph:
    """The graph of that name, in any letter case.

    Files are looked for in ``data_root`` (else ``SPIKEGCL_DATA``) and in the cache, then downloaded. ``seed`` matters
    only to generated graphs. Options may be part of the name, where a ``seed`` too can be fixed:

    >>> load_dataset("sbm:nodes=200,classes=4,degree=6")
    Graph(sbm:nodes=200,classes=4,degree=6: 200 nodes, 600 undirected edges, 128 sparse features, 4 classes)

    ``features=False`` reads an OGB graph without its features, which are nearly all of its bytes.
    """
    info, inline = _parse_name(name)
    options = inline | options
    if unknown := sorted(options.keys() - set(info.options)):
        allowed = ", ".join(info.options) or "none"
        raise ConfigError(f"{info.name} has no option {', '.join(unknown)}; its options: {allowed}")
    if info.kind == "generated":
        given = ",".join(f"{option}={value}" for option, value in options.items())
        graph = stochastic_block_model(**{"seed": seed} | options)
        return replace(graph, name=f"{info.name}:{given}" if given else info.name)
    if info.kind == "bundled":
        return _digits()

    raw = RAW_FILES[info.name]
    paths = obtain_files(info.name, raw, _roles(raw, options), data_root, download)
    if info.kind == "ogb":
        return _read_ogb(info.name, paths)
    contents = {role: read_pinned(path, raw.files[role].sha256) for role, path in paths.items()}
    return _read_planetoid(info.name, contents) if info.kind == "planetoid" else _read_npz(info.name, contents["graph"])


def available(name: str, data_root: str | Path | None = None) -> bool:
    """Whether :func:`load_dataset` would find every file without a download (their content is not checked)."""
    info, options = _parse_name(name)
    if info.name not in RAW_FILES:
        return True
    raw = RAW_FILES[info.name]
    roles = _roles(raw, options)
    return len(find_files(raw, roles, data_root)) == len(roles)


def _roles(raw: RawFiles, options: dict[str, Any]) -> list[str]:
    return [role for role in raw.files if role != "features" or options.get("features", True)]


def is_dataset(name: str) -> bool:
    """Whether :func:`load_dataset` knows the name, with or without options behind it.

    >>> is_dataset("Cora"), is_dataset("sbm:nodes=1000"), is_dataset("edges.csv")
    (True, True, False)
    """
    return name.partition(":")[0].strip().lower() in DATASETS


def _parse_name(name: str) -> tuple[DatasetInfo, dict[str, Any]]:
    """``sbm:nodes=1000,classes=5`` as the table's row and ``{"nodes": 1000, "classes": 5}``."""
    if not is_dataset(name):
        raise ConfigError(f"no dataset is called {name!r}; the names are {', '.join(DATASETS)}")
    key, _, text = name.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        option, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ConfigError(f"{name!r}: write options as name=value with commas between, not {item!r}")
        options[option] = _parse_value(name, value)
    return DATASETS[key.strip().lower()], options


def _parse_value(name: str, text: str) -> bool | int | float:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"{name!r}: {text!r} is neither a number nor true or false") from None
    # People write large counts as 1e6.
    return int(number) if number.is_integer() else number


# Files ------------------------------------------------------------------------------------------------------------


def _read_planetoid(name: str, contents: dict[str, bytes]) -> Graph:
    """A citation graph with the split PyG calls ``full``.

    Nodes 0 .. are the rows of ``allx``; row i of ``tx`` belongs to the node in line i of ``test.index``. CiteSeer has
    15 nodes in neither: they get no features, and class 0 by the argmax of zeros. PyG does the same and, as they are
    in no other part, trains on them; we follow, so that numbers compare.
    """
    test = np.array(contents["test_index"].split(), dtype=np.int64)
    allx, tx = (_planetoid_features(contents[role]) for role in ("allx", "tx"))
    ally, ty = (load_pickle(contents[role]) for role in ("ally", "ty"))
    first_labelled = len(load_pickle(contents["y"]))
    neighbours: dict[int, list[int]] = load_pickle(contents["graph"])

    count, listed = int(test.max()) + 1, allx.shape[0]
    row = np.full(count, listed + len(test))  # the row of zeros below tx, unless told otherwise
    row[:listed] = np.arange(listed)
    row[test] = listed + np.arange(len(test))
    empty = sp.csr_array((1, allx.shape[1]), dtype=allx.dtype)
    features = sp.vstack([allx, tx, empty], format="csr")[row]
    labels = np.vstack([ally, ty, np.zeros_like(ty[:1])])[row].argmax(axis=1)

    source = np.repeat(np.fromiter(neighbours, np.int64), [len(targets) for targets in neighbours.values()])
    target = np.concatenate([np.array(targets, np.int64) for targets in neighbours.values()])
    val = np.arange(first_labelled, first_labelled + 500)
    train = np.setdiff1d(np.arange(count), np.concatenate([val, test]))
    split = Split(train, val, test)
    return build_graph(np.stack([source, target]), features, labels=labels, split=split, name=name)


def _planetoid_features(content: bytes) -> sp.csr_array:
    matrix = load_pickle(content)
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix._shape)


def _read_npz(name: str, content: bytes) -> Graph:
    """A co-purchase or co-author graph, with its word counts made 0 or 1 as in PyG."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        adjacency, features = (
            sp.csr_array(
                (arrays[f"{part}_data"], arrays[f"{part}_indices"], arrays[f"{part}_indptr"]),
                shape=tuple(arrays[f"{part}_shape"]),
            )
            for part in ("adj", "attr")
        )
        labels = arrays["labels"]
        classes = _class_names(arrays)
    features.sum_duplicates()
    features.data[features.data > 0] = 1
    edges = np.stack(adjacency.tocoo().coords)  # indices only: like PyG, we take every edge to weigh 1
    return replace(build_graph(edges, features, labels=labels, name=name), classes=classes)


def _class_names(arrays: Any) -> tuple[str, ...] | None:
    try:
        return tuple(arrays["class_names"].tolist())
    except ValueError:
        # The Coauthor files keep theirs as pickled objects; a name is not worth opening a pickle.
        return None


def _read_ogb(name: str, paths: dict[str, Path]) -> Graph:
    """An OGB graph from its raw CSV files, made undirected. Of MAG only papers that cite papers are kept."""
    if name == "ogbn-mag":
        counts = _read_csv(paths["count"], np.int64, header=0)
        if "paper" not in counts:
            raise ReadError(f"{paths['count']} has no column paper; it should give the number of nodes of each type")
        count = int(counts["paper"].iloc[0])
    else:
        count = int(_read_csv(paths["count"], np.int64).iloc[0, 0])
    edges = _read_csv(paths["edges"], np.int64).to_numpy()
    if edges.shape[1] != 2:
        raise ReadError(f"{paths['edges']} has {edges.shape[1]} columns; an edge list has two, source and target")
    labels = _read_rows(paths["labels"], np.int64, count)[:, 0]
    features = _read_rows(paths["features"], np.float32, count) if "features" in paths else None
    split = Split(*(_read_part(paths[part], count) for part in ("train", "valid", "test")))
    return build_graph(edges.T, features, num_nodes=count, labels=labels, split=split, name=name)


def _read_part(path: Path, count: int) -> NDArray[np.int64]:
    nodes: NDArray[np.int64] = _read_csv(path, np.int64).to_numpy()[:, 0]
    if (outside := nodes[(nodes < 0) | (nodes >= count)]).size:
        raise ReadError(f"{path} names node {outside[0]}, but nodes run from 0 to {count - 1}; unpack it again")
    return nodes


def _read_rows(path: Path, dtype: type, count: int) -> NDArray[Any]:
    rows: NDArray[Any] = _read_csv(path, dtype).to_numpy()
    if len(rows) != count:
        raise ReadError(f"{path} has {len(rows)} rows for {count} nodes; delete it and unpack it again")
    return rows


def _read_csv(path: Path, dtype: type, header: int | None = None) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(path, header=header, dtype=dtype, compression="gzip")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ReadError(f"cannot read {path}: {error}; delete it and unpack it again") from error


# Graphs without files ---------------------------------------------------------------------------------------------


def _digits() -> Graph:
    """scikit-learn's 1797 images of 8 x 8 pixels, each joined to its ten nearest (both directions count)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # Pixels are whole numbers up to 16, so these squared distances are exact, and equal ones go to the lower index:
    # the same graph on every machine, which a library's neighbour search does not promise.
    squares = (pixels**2).sum(axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * pixels @ pixels.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :10]
    source = np.repeat(np.arange(len(pixels)), nearest.shape[1])
    return build_graph(np.stack([source, nearest.ravel()]), pixels / 16, labels=labels, name="digits")


def stochastic_block_model(
    nodes: int = 10_000,
    classes: int = 8,
    degree: float = 15.0,
    homophily: float = 0.8,
    num_features: int = 128,
    active: int = 12,
    signal: float = 0.3,
    seed: int = 0,
) -> Graph:
    """A random graph of equally large classes, of any size that memory holds: O(edges + nodes * active).

    The microcanonical form: there are exactly ``nodes * degree / 2`` edges, exactly the share ``homophily`` of them
    inside a class, and otherwise they fall at random. Each class prefers an eighth of the feature columns; a node has
    ``active`` words, each with probability ``signal`` in a column its class prefers and else in any column (words that
    meet in one column count once).
    """
    _check_block_model(nodes, classes, degree, homophily, num_features, active, signal, seed)
    rng = np.random.default_rng(seed)
    # Edges are drawn between positions 0 .. nodes - 1, in which every class is one run; then nodes take positions.
    group = np.arange(nodes) * classes // nodes
    size = np.bincount(group)
    start = np.cumsum(size) - size

    def inside(position: NDArray[np.int64]) -> NDArray[np.int64]:
        own = group[position]
        return start[own] + rng.integers(0, size[own])

    def across(position: NDArray[np.int64]) -> NDArray[np.int64]:
        own = group[position]
        other = rng.integers(0, nodes - size[own])
        return other + (other >= start[own]) * size[own]  # steps over the run of the own class

    total = round(nodes * degree / 2)
    alike = round(total * homophily)
    room_inside = int((size * (size - 1) // 2).sum())
    room_across = nodes * (nodes - 1) // 2 - room_inside
    # Drawing without repeats takes ever longer as pairs run out; half of them is far beyond any graph of interest.
    if 2 * alike > room_inside or 2 * (total - alike) > room_across:
        raise ConfigError(
            f"sbm: {alike} edges inside classes and {total - alike} across are more than half of the {room_inside} and "
            f"{room_across} pairs there are; lower degree, change homophily, or add nodes"
        )
    pairs = [_distinct_pairs(inside, alike, nodes, rng), _distinct_pairs(across, total - alike, nodes, rng)]
    node = rng.permutation(nodes)
    edges = node[np.stack(np.divmod(np.concatenate(pairs), nodes))]
    labels = np.empty(nodes, np.int64)
    labels[node] = group
    features = _class_words(labels, classes, num_features, active, signal, rng)
    return build_graph(edges, features, labels=labels, name="sbm")


def _check_block_model(
    nodes: int,
    classes: int,
    degree: float,
    homophily: float,
    num_features: int,
    active: int,
    signal: float,
    seed: int,
) -> None:
    int32 = np.iinfo(np.int32).max
    whole = {
        "nodes": (nodes, 2, int32),
        "classes": (classes, 1, nodes),
        "num_features": (num_features, 1, int32),
        "active": (active, 1, num_features),
        "seed": (seed, 0, np.iinfo(np.int64).max),
    }
    real = {"degree": (degree, 0, nodes), "homophily": (homophily, 0, 1), "signal": (signal, 0, 1)}
    for option, (value, low, high) in (whole | real).items():
        kinds = (int, np.integer) if option in whole else (int, float, np.integer, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            number = "whole number" if option in whole else "number"
            raise ConfigError(f"sbm: {option} must be a {number} from {low} to {high}, not {value!r}")


def _distinct_pairs(
    partner: Callable[[NDArray[np.int64]], NDArray[np.int64]], count: int, nodes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """``count`` different unordered pairs, each as ``low * nodes + high``, of a random node and its drawn partner."""
    pairs = np.empty(0, np.int64)
    while (missing := count - len(pairs)) > 0:
        first = rng.integers(0, nodes, missing + missing // 20 + 16)  # a few more, for those that repeat
        second = partner(first)
        low, high = np.minimum(first, second), np.maximum(first, second)
        pairs = sorted_unique(np.concatenate([pairs, (low * nodes + high)[low != high]]))
    return np.delete(pairs, rng.choice(len(pairs), len(pairs) - count, replace=False))


def _class_words(
    labels: NDArray[np.int64], classes: int, width: int, active: int, signal: float, rng: np.random.Generator
) -> sp.csr_array:
    """A 0/1 bag of words, N x width, in which every class has its own frequent columns."""
    preferred = np.argsort(rng.random((classes, width)), axis=1)[:, : max(1, width // 8)].astype(np.int32)
    shape = (len(labels), active)
    words = rng.integers(0, width, shape, dtype=np.int32)
    typical = preferred[labels[:, None], rng.integers(0, preferred.shape[1], shape, dtype=np.int32)]
    np.copyto(words, typical, where=rng.random(shape, dtype=np.float32) < signal)
    words.sort(axis=1)
    fresh = np.ones(shape, bool)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    indptr = np.concatenate([[0], np.cumsum(fresh.sum(axis=1))])
    indices = words[fresh]
    return sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(labels), width))


# Splits -----------------------------------------------------------------------------------------------------------


def make_split(graph: Graph, seed: int = 0, protocol: str | None = None) -> Split:
    """Labelled nodes for training, validation and test; nodes without a label are in no part.

    ``own`` is the split the graph came with (the citation and OGB sets; the seed plays no part). ``stratified`` is
    random in the ratio 1:1:8 inside every class, at least one node of each class for training and then one for
    validation: a class of two nodes is missing from test, a class of one from validation too, and the log says so.
    The default is ``own`` where there is one.
    """
    if protocol not in (None, "own", "stratified"):
        raise ConfigError(f"no split protocol is called {protocol!r}; the names are own, stratified")
    if graph.labels is None or not (graph.labels >= 0).any():
        raise LabelError(f"{graph.name} has no labels, so it cannot be split; give a label for some nodes at least")
    if protocol == "own" and graph.split is None:
        raise LabelError(f"{graph.name} has no split of its own; use the stratified one")
    if graph.split is not None and protocol != "stratified":
        parts = (graph.split.train, graph.split.val, graph.split.test)
        return Split(*(part[graph.labels[part] >= 0] for part in parts))
    return _stratified_split(graph.labels, seed)


def _stratified_split(labels: NDArray[np.int64], seed: int) -> Split:
    nodes = np.random.default_rng(seed).permutation(np.flatnonzero(labels >= 0))
    nodes = nodes[np.argsort(labels[nodes], kind="stable")]  # class by class, in random order inside
    own = np.unique(labels[nodes], return_inverse=True)[1]
    size = np.bincount(own)
    tenth = np.maximum(1, (size + 5) // 10)
    rank = np.arange(len(nodes)) - (np.cumsum(size) - size)[own]
    train, val = rank < tenth[own], (rank >= tenth[own]) & (rank < 2 * tenth[own])
    if small := int((size < 3).sum()):
        log.warning("%d classes have fewer than three labelled nodes and are missing from test", small)
    return Split(nodes[train], nodes[val], nodes[~train & ~val])
