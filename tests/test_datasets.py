"""Named graphs: the real files give the published counts, bad files are refused, generated graphs keep their word."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import zipfile
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse as sp

from spikegcl.datasets import (
    DATASETS,
    available,
    find_data_root,
    is_dataset,
    load_dataset,
    make_split,
    stochastic_block_model,
)
from spikegcl.downloads import RAW_FILES, RawFile, RawFiles, cache_root, download_root, load_pickle, obtain_files
from spikegcl.errors import ConfigError, DataMissingError, LabelError, ReadError
from spikegcl.graph import Graph, build_graph

if TYPE_CHECKING:
    from pathlib import Path

REAL = ["cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics"]


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's cache nor their settings nor the network take part in a test."""

    def refuse(request: Any, **_: Any) -> Any:
        if request.full_url.startswith("file:"):
            return urlopen(request)
        raise URLError("no network in tests")

    from urllib.request import urlopen

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPIKEGCL_DATA", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


# The real graphs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_real_graphs_have_the_published_size(name: str, data_root: Path) -> None:
    graph, info = load_dataset(name, data_root), DATASETS[name]
    assert available(name, data_root)
    assert (graph.num_nodes, graph.num_edges) == (info.nodes, info.edges)
    assert (graph.num_features, graph.num_classes) == (info.features, info.classes)
    assert graph.labels is not None and len(np.unique(graph.labels)) == info.classes
    assert graph.weights is None and graph.name == name


@pytest.mark.parametrize(("name", "train"), [("cora", 1208), ("citeseer", 1827), ("pubmed", 18217)])
def test_citation_sets_bring_the_full_split(name: str, train: int, data_root: Path) -> None:
    graph = load_dataset(name.upper(), data_root)
    split = make_split(graph, seed=7)
    assert [len(split.train), len(split.val), len(split.test)] == [train, 500, 1000]
    assert graph.split is not None and split.hash == graph.split.hash


def test_bags_of_words_stay_sparse_and_binary(data_root: Path) -> None:
    features = load_dataset("physics", data_root).features
    assert sp.issparse(features)
    assert set(np.unique(features.data)) == {1.0}  # the file has counts; PyG and we keep presence only


def test_citeseer_keeps_its_nodes_without_features(data_root: Path) -> None:
    graph = load_dataset("citeseer", data_root)
    empty = np.flatnonzero(np.diff(graph.features.indptr) == 0)
    assert len(empty) == 15
    assert graph.labels is not None and set(graph.labels[empty]) == {0}


def test_amazon_classes_have_names(data_root: Path) -> None:
    classes = load_dataset("photo", data_root).classes
    assert classes is not None and "Film Photography" in classes


def test_partial_arxiv(data_root: Path) -> None:
    if not (data_root / "ogbn_arxiv_partial").is_dir():
        pytest.skip(f"{data_root} has no ogbn_arxiv_partial")
    assert not available("ogbn-arxiv", data_root)
    assert available("ogbn-arxiv:features=false", data_root)
    with pytest.raises(DataMissingError, match=r"raw/node-feat\.csv\.gz.*arxiv\.zip"):
        load_dataset("ogbn-arxiv", data_root)
    graph = load_dataset("ogbn-arxiv", data_root, features=False)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (169_343, 2_315_598, 40)
    assert graph.features is None
    split = make_split(graph)
    assert [len(split.train), len(split.val), len(split.test)] == [90_941, 29_799, 48_603]


# Names and options ------------------------------------------------------------------------------------------------


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'core'.*cora, citeseer"):
        load_dataset("core")


def test_unknown_option_lists_the_options() -> None:
    with pytest.raises(ConfigError, match=r"no option size; its options: nodes, classes"):
        load_dataset("sbm", size=10)
    with pytest.raises(ConfigError, match="its options: none"):
        load_dataset("digits:k=3")


def test_options_in_the_name_equal_options_as_keywords() -> None:
    written = load_dataset("SBM:nodes=3e2, degree=4.5,seed=3")
    passed = load_dataset("sbm", nodes=300, degree=4.5, seed=3)
    assert written.hash == passed.hash
    assert load_dataset(written.name).hash == written.hash


@pytest.mark.parametrize("name", ["sbm:nodes", "sbm:nodes=many"])
def test_options_that_cannot_be_read(name: str) -> None:
    with pytest.raises(ConfigError, match="sbm:nodes"):
        load_dataset(name)


def test_is_dataset() -> None:
    assert all(map(is_dataset, DATASETS))
    assert not is_dataset("cora.csv")


def test_table_names_a_folder_for_every_dataset_with_files() -> None:
    for info in DATASETS.values():
        folder = info.folder.partition("/")[0]
        assert folder == (RAW_FILES[info.name].folders[0] if info.name in RAW_FILES else "")


# Where files are and what they hold -------------------------------------------------------------------------------


def test_data_root_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_data_root() == cache_root() == tmp_path / "cache" / "spikegcl"
    monkeypatch.setenv("SPIKEGCL_DATA", str(tmp_path / "env"))
    assert find_data_root() == tmp_path / "env"
    assert find_data_root(tmp_path / "given") == tmp_path / "given"


def test_downloads_go_to_a_given_writable_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert download_root(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "frozen").mkdir(mode=0o555)
    assert download_root(tmp_path / "frozen") == cache_root()
    monkeypatch.setenv("SPIKEGCL_DATA", str(tmp_path))
    assert download_root() == cache_root()


def test_missing_files_are_named_with_place_and_address(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError) as caught:
        load_dataset("photo", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "Photo/raw/amazon_electronics_photo.npz") in message
    assert "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/amazon_electronics_photo.npz" in message
    assert "no network in tests" in message
    with pytest.raises(DataMissingError, match="switched off"):
        load_dataset("photo", tmp_path, download=False)


@pytest.mark.parametrize("name", ["cora", "photo"])
def test_a_changed_file_is_refused_before_it_is_opened(name: str, tmp_path: Path) -> None:
    raw = RAW_FILES[name]
    for file in raw.files.values():
        path = tmp_path / raw.folders[0] / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    first = next(iter(raw.files.values()))
    with pytest.raises(ReadError, match=rf"{first.path}.*{first.sha256}.*{found}.*delete"):
        load_dataset(name, tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("content", [Evil(), np.random.default_rng(0), sp.coo_matrix((1, 1))])
def test_unpickler_refuses_what_benchmark_files_do_not_need(
    content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReadError, match="refused"):
        load_pickle(pickle.dumps(content, protocol=2))
    assert not (tmp_path / "evil").exists()


def test_unpickler_reads_python2_graphs() -> None:
    graph = defaultdict(list, {0: [1], 1: [0]})
    assert load_pickle(pickle.dumps(graph, protocol=2)) == graph  # protocol 2 writes Python 2's module names


def test_download_appears_whole_and_verified(tmp_path: Path) -> None:
    source, root = tmp_path / "server", tmp_path / "root"
    source.mkdir()
    (source / "graph.bin").write_bytes(b"graph")
    raw = RawFiles(
        ("Toy",), f"file://{source}/", {"graph": RawFile("raw/graph.bin", hashlib.sha256(b"graph").hexdigest())}
    )
    path = obtain_files("toy", raw, ["graph"], root)["graph"]
    assert path == root / "Toy/raw/graph.bin" and path.read_bytes() == b"graph"
    path.unlink()
    (source / "graph.bin").write_bytes(b"changed")
    with pytest.raises(ReadError, match=r"graph\.bin is not the published file"):
        obtain_files("toy", raw, ["graph"], root)
    assert list(path.parent.iterdir()) == []


def test_a_download_for_a_frozen_root_is_found_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "graph.bin").write_bytes(b"graph")
    (tmp_path / "frozen").mkdir(mode=0o555)
    raw = RawFiles(("Toy",), f"file://{tmp_path}/", {"graph": RawFile("raw/graph.bin")})
    path = obtain_files("toy", raw, ["graph"], tmp_path / "frozen")["graph"]
    assert path == cache_root() / "Toy/raw/graph.bin"
    assert obtain_files("toy", raw, ["graph"], tmp_path / "frozen", download=False) == {"graph": path}


# OGB --------------------------------------------------------------------------------------------------------------

ARXIV = {
    "raw/edge.csv.gz": "0,1\n1,0\n1,2\n3,3\n",
    "raw/node-feat.csv.gz": "0.5,1.0\n-1.5,2.0\n0.25,3.0\n4.0,0.125\n",
    "raw/node-label.csv.gz": "2\n0\n1\n0\n",
    "raw/num-node-list.csv.gz": "4\n",
    "split/time/train.csv.gz": "3\n0\n",
    "split/time/valid.csv.gz": "1\n",
    "split/time/test.csv.gz": "2\n",
}
MAG = {
    "raw/relations/paper___cites___paper/edge.csv.gz": ARXIV["raw/edge.csv.gz"],
    "raw/node-feat/paper/node-feat.csv.gz": ARXIV["raw/node-feat.csv.gz"],
    "raw/node-label/paper/node-label.csv.gz": ARXIV["raw/node-label.csv.gz"],
    "raw/num-node-dict.csv.gz": "author,field_of_study,institution,paper\n7,3,2,4\n",
    "split/time/paper/train.csv.gz": ARXIV["split/time/train.csv.gz"],
    "split/time/paper/valid.csv.gz": ARXIV["split/time/valid.csv.gz"],
    "split/time/paper/test.csv.gz": ARXIV["split/time/test.csv.gz"],
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize(("name", "files"), [("ogbn-arxiv", ARXIV), ("ogbn-mag", MAG)])
def test_ogb_layouts(name: str, files: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / name.replace("-", "_"), files)
    graph = load_dataset(name, tmp_path)
    assert available(name, tmp_path)
    np.testing.assert_array_equal(graph.adjacency.toarray(), [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(graph.features, [[0.5, 1], [-1.5, 2], [0.25, 3], [4, 0.125]])
    assert graph.labels is not None and graph.labels.tolist() == [2, 0, 1, 0]
    split = make_split(graph)
    assert [part.tolist() for part in (split.train, split.val, split.test)] == [[0, 3], [1], [2]]
    assert load_dataset(f"{name}:features=false", tmp_path).features is None


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("raw/node-label.csv.gz", "2\n0\n", "2 rows for 4 nodes"),
        ("raw/node-feat.csv.gz", "a,b\n" * 4, "could not convert"),
        ("raw/edge.csv.gz", "0\n1\n", "1 columns"),
        ("split/time/test.csv.gz", "9\n", "names node 9"),
    ],
)
def test_ogb_files_that_do_not_fit(file: str, text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "ogbn_arxiv", ARXIV | {file: text})
    with pytest.raises(ReadError, match=f"{file}.*{message}"):
        load_dataset("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize("keep", [slice(0), slice(-9), slice(5, None)])
def test_ogb_file_that_is_damaged(keep: slice, tmp_path: Path) -> None:
    write(tmp_path / "ogbn_arxiv", ARXIV)
    path = tmp_path / "ogbn_arxiv/raw/edge.csv.gz"
    path.write_bytes(path.read_bytes()[keep])
    with pytest.raises(ReadError, match=r"edge\.csv\.gz"):
        load_dataset("ogbn-arxiv", tmp_path)


def serve_arxiv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    archive = tmp_path / "arxiv.zip"
    with zipfile.ZipFile(archive, "w") as members:
        for name, text in files.items():
            members.writestr(f"arxiv/{name}", gzip.compress(text.encode()))
        members.writestr("arxiv/mapping/README.md", "not needed")
    monkeypatch.setitem(RAW_FILES, "ogbn-arxiv", replace(RAW_FILES["ogbn-arxiv"], url=f"file://{archive}"))


def test_ogb_archive_gives_the_files_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_arxiv(tmp_path, monkeypatch, ARXIV)
    folder = tmp_path / "root" / "ogbn_arxiv"
    write(folder, {"raw/edge.csv.gz": "0,3\n"})
    assert load_dataset("ogbn-arxiv", tmp_path / "root").num_edges == 2  # the file that was there is left alone
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert present == set(ARXIV)


def test_ogb_archive_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_arxiv(tmp_path, monkeypatch, {"raw/edge.csv.gz": "0,1\n"})
    with pytest.raises(ReadError, match=r"arxiv\.zip is not the archive it should be"):
        load_dataset("ogbn-arxiv", tmp_path / "root")


# Graphs without files ---------------------------------------------------------------------------------------------


def test_digits() -> None:
    graph, info = load_dataset("digits"), DATASETS["digits"]
    assert (graph.num_nodes, graph.num_edges) == (info.nodes, info.edges)
    assert (graph.num_features, graph.num_classes) == (info.features, info.classes)
    assert graph.degrees.min() >= 10
    assert graph.features.min() == 0 and graph.features.max() == 1
    assert graph.hash == load_dataset("digits", seed=5).hash
    assert (
        hashlib.sha256(graph.indices.astype("<i4").tobytes()).hexdigest().startswith("4dacc387fc09")
    )  # on any machine
    assert available("digits")


def edge_homophily(graph: Graph) -> float:
    assert graph.labels is not None
    source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    return float((graph.labels[source] == graph.labels[graph.indices]).mean())


@pytest.mark.parametrize(("nodes", "classes", "degree", "homophily"), [(2000, 5, 15.0, 0.8), (501, 3, 7.5, 0.1)])
def test_sbm_keeps_degree_homophily_and_balance(nodes: int, classes: int, degree: float, homophily: float) -> None:
    graph = stochastic_block_model(nodes, classes, degree, homophily, seed=1)
    assert graph.labels is not None
    assert graph.num_edges == 2 * round(nodes * degree / 2)
    assert edge_homophily(graph) == pytest.approx(homophily, abs=1e-3)
    assert np.ptp(np.bincount(graph.labels, minlength=classes)) <= 1
    assert abs(np.corrcoef(np.arange(nodes), graph.labels)[0, 1]) < 0.2  # the order of nodes tells nothing
    assert graph.degrees.max() < 5 * degree


def test_sbm_features_tell_classes_and_neighbours_help() -> None:
    graph = load_dataset("sbm", nodes=2000)
    labels = graph.labels
    assert graph.is_sparse and labels is not None
    assert graph.features.data.min() == graph.features.data.max() == 1
    half = np.arange(2000) < 1000

    def nearest_mean(features: np.ndarray[Any, Any]) -> float:
        means = np.stack([features[half & (labels == label)].mean(axis=0) for label in range(8)])
        distance = ((features[~half][:, None] - means) ** 2).sum(axis=2)
        return float((distance.argmin(axis=1) == labels[~half]).mean())

    own = graph.features.toarray()
    alone, together = nearest_mean(own), nearest_mean(own + graph.adjacency @ own)
    assert 0.3 < alone < 0.9
    assert together > alone + 0.05


def test_sbm_is_a_function_of_its_seed() -> None:
    first, again, other = (load_dataset("sbm:nodes=500", seed=seed) for seed in (1, 1, 2))
    assert first.hash == again.hash != other.hash
    assert first.labels is not None and again.labels is not None
    assert first.labels.tolist() == again.labels.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 1}, "nodes must be a whole number from 2"),
        ({"nodes": 10.5}, "nodes must be a whole number"),
        ({"nodes": 10, "classes": 11}, "classes must be a whole number from 1 to 10"),
        ({"homophily": 1.2}, "homophily must be a number from 0 to 1"),
        ({"active": 200}, "active must be a whole number from 1 to 128"),
        ({"nodes": 100, "degree": 60}, "lower degree"),
        ({"nodes": 100, "classes": 1}, "change homophily"),
    ],
)
def test_sbm_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_dataset("sbm", **options)


# Splits -----------------------------------------------------------------------------------------------------------


def labelled(labels: list[int]) -> Graph:
    return build_graph(np.zeros((2, 0), np.int64), num_nodes=len(labels), labels=np.array(labels))


def test_stratified_split_is_one_one_eight_in_every_class() -> None:
    graph = load_dataset("digits")
    split = make_split(graph, seed=0)
    assert graph.labels is not None
    parts = [np.bincount(graph.labels[part], minlength=10) for part in (split.train, split.val, split.test)]
    size = np.bincount(graph.labels)
    np.testing.assert_array_equal(sum(parts), size)
    assert np.abs(parts[0] - size / 10).max() <= 0.5
    np.testing.assert_array_equal(parts[0], parts[1])


def test_split_is_a_function_of_its_seed() -> None:
    graph = load_dataset("sbm:nodes=500")
    assert make_split(graph, 3).hash == make_split(graph, 3).hash
    assert len({make_split(graph, seed).hash for seed in range(5)}) == 5


def test_split_leaves_out_nodes_without_a_label() -> None:
    labels = [0, 1, -1, 1, 0, -1] * 10
    split = make_split(labelled(labels))
    nodes = np.concatenate([split.train, split.val, split.test])
    assert sorted(nodes) == [node for node, label in enumerate(labels) if label >= 0]


@pytest.mark.parametrize(("size", "counts"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (14, (1, 1, 12))])
def test_small_classes_are_trained_on_first(size: int, counts: tuple[int, int, int]) -> None:
    split = make_split(labelled([0] * size + [2] * 20))  # class 1 has no nodes at all
    assert tuple(int((part < size).sum()) for part in (split.train, split.val, split.test)) == counts


def test_own_split_is_the_default_and_can_be_left() -> None:
    labels = [0, 1] * 20
    own = make_split(labelled(labels), 1)
    labels[own.test[0]] = -1
    graph = replace(labelled(labels), split=own)
    kept = make_split(graph, 2)
    assert kept.train.tolist() == own.train.tolist() and kept.test.tolist() == own.test[1:].tolist()
    assert make_split(graph, 2, "stratified").hash != kept.hash


def test_splits_that_cannot_be_made() -> None:
    graph = labelled([-1, -1])
    with pytest.raises(LabelError, match="no labels"):
        make_split(graph)
    with pytest.raises(LabelError, match="no labels"):
        make_split(replace(graph, labels=None))
    with pytest.raises(LabelError, match="no split of its own"):
        make_split(labelled([0, 1]), protocol="own")
    with pytest.raises(ConfigError, match="own, stratified"):
        make_split(labelled([0, 1]), protocol="random")
