"""Preparation: the graph that the readers give, from files in any number of blocks; bad rows counted and located."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from commands import FAST, options
from spikegcl import blocks, preparation
from spikegcl.codes import open_codes
from spikegcl.csr_files import write_adjacency
from spikegcl.errors import ConfigError, FeatureError, GraphError, LabelError, ReadError
from spikegcl.graph import Graph
from spikegcl.preparation import prepare_graph
from spikegcl.prepared import open_prepared
from spikegcl.readers import read_graph, write_graph
from strategies import graphs


@pytest.fixture
def put(tmp_path):
    """Write text, bytes, an array or a data frame to a file and return its path."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            content.to_parquet(path)
        return path

    return write


@pytest.fixture(params=[blocks.BLOCK_BYTES, 16], ids=["one block", "small blocks"])
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


def assert_prepared_as_read(folder, edges, **files):
    """The folder made of these files opens to the graph that ``read_graph`` makes of them."""
    lists = {name: [path] if name == "features" else path for name, path in files.items()}
    prepare_graph([edges], folder, **lists)
    graph, expected = open_prepared(folder, verify=True), read_graph(edges, **files)
    fields = {name: getattr(graph, name) for name in Graph.__dataclass_fields__}
    assert Graph(**fields).hash == graph.hash == expected.hash
    assert graph.ids.tolist() == expected.ids.tolist()
    assert graph.ids.dtype == expected.ids.dtype
    assert (graph.name, graph.columns, graph.classes) == (expected.name, expected.columns, expected.classes)
    assert (graph.labels is None) == (expected.labels is None)
    assert graph.labels is None or np.array_equal(graph.labels, expected.labels)
    assert (graph.split and graph.split.hash) == (expected.split and expected.split.hash)


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("e.csv", "b,a\na,b\nb,b\nc,a\na,c\n"),
        ("e.csv", "source,target\n10,9\n9,10\n7,7\n"),
        ("e.tsv", "# a comment\n\n1\t01\r\n# another\r\n01\t2\r\n"),
        ("e.txt", "x   y\n  y z\n"),
        ("e.csv", "a,b,0.5\nb,a,2\na,c,1\n"),
        ("e.csv", "a,b,1\nb,a,0.5\na,c,1\n"),
        ("e.csv", "a,b,0.5\na,b,1\nb,a,1\na,c,1\n"),
        ("e.csv", "a,b,2\nb,b,0\nb,c,0\n"),
        ("e.csv", "a,b,0\n"),
        ("e.csv.gz", gzip.compress(b"x,y\ny,z\n", mtime=0)),
        ("e.csv", "5,6\n7,a\n"),
        ("e.parquet", pd.DataFrame({"dst": [3, 1, 2], "src": [1, 3, 2]})),
        ("e.parquet", pd.DataFrame({"u": pd.Categorical(["é", "b"]), "v": ["b", "c"], "w": [1.5, 2]})),
    ],
)
def test_edges_alone(put, tmp_path, block_bytes, name, edges):
    assert_prepared_as_read(tmp_path / "g", put(name, edges))


@pytest.mark.parametrize(
    ("edges", "name", "features"),
    [
        ("a,b\nb,c\n", "x.csv", "id,height,mass\nc,1,2.5\na,0.1,0\nlonely,-3,1e-3\nb,7,8\n"),
        ("0,1\n", "x.csv", ",0,1\n0,5,6\n1,7,8\n"),
        ("0,1\n2,1\n", "x.csv", "2,0,0,0,0,0\n1,0,0,3,0,0\n0,0,0,0,0,-1\n"),
        ("7,5\n", "x.parquet", pd.DataFrame({"a": [5, 7, 1], "node": [5, 7, 6], "b": [6.0, 8.0, 0.1]})),
        ("1,0\n2,1\n", "x.npy", np.array([[5, 6], [7, 8], [0, 1]], np.float64, order="F")),
        ("1,0\n", "x.npy", np.eye(9)),
        ("b,c\n", "n.csv", "id\nc\na\nb\n"),
        ("1,2\n", "n.csv", "id\n2\nx\n1\n"),
    ],
)
def test_features(put, tmp_path, block_bytes, edges, name, features):
    assert_prepared_as_read(tmp_path / "g", put("e.csv", edges), features=put(name, features))


@pytest.mark.parametrize(
    ("labels", "split"),
    [
        (("y.csv", "id,label\n2,5\n0,-3\n"), ("s.csv", "0,train\n1,Valid\n2,test\n")),
        (("y.tsv", "2\tdb\n0\tai\n1\t\n"), ("s.csv", "2,0\n1,\n0,1\n")),
        (("y.csv", "0,01\n1,1\n2,1\n"), ("s.npy", np.array(["train", "", "test"]))),
        (("y.npy", np.array([3, -1, 5])), ("s.parquet", pd.DataFrame({"id": ["0"], "part": ["val"]}))),
        (("y.parquet", pd.DataFrame({"id": [2, 0, 1], "label": [5.0, 3.0, None]})), ("s.csv", "0,train\n")),
        (("y.csv", "id,label\n"), ("s.csv", "id,part\n")),
    ],
)
def test_labels_and_splits(put, tmp_path, block_bytes, labels, split):
    assert_prepared_as_read(tmp_path / "g", put("e.csv", "0,1\n1,2\n"), labels=put(*labels), split=put(*split))


@given(graphs(weighted=True))
@settings(max_examples=12, deadline=None)
def test_any_graph_comes_back_from_its_files(tmp_path_factory, graph):
    folder = tmp_path_factory.mktemp("files")
    named = replace(graph, columns=tuple(f"c{number}" for number in range(graph.num_features)))  # for a table, not .npz
    assert_prepared_as_read(folder / "g", **write_graph(named, folder))


def test_several_files_are_one(put, tmp_path):
    edges = [put("a.csv", "x,y\ny,z\n"), put("b.tsv", "from\tto\nz\tw\n"), put("all.csv", "x,y\ny,z\nz,w\n")]
    features = [put("f1.csv", "id,h\nw,1\nz,2\n"), put("f2.csv", "id,h\ny,3\nx,4\n")]
    whole = put("f.csv", "id,h\nw,1\nz,2\ny,3\nx,4\n")
    prepare_graph(edges[:2], tmp_path / "g", features=features)
    assert open_prepared(tmp_path / "g").hash == read_graph(edges[2], features=whole).hash


def test_lines_that_are_no_edges_are_counted(put, tmp_path, block_bytes, caplog):
    caplog.set_level("INFO", "spikegcl")
    prepare_graph([put("e.csv", "0,1,2\n1,1,0\n1,2,0\n2,3,0\n")], tmp_path / "g")
    for count in ("removed 1 self-loops", "removed 2 edges of weight 0", "1 edge lines describe 1 undirected"):
        assert count in caplog.text


def test_columns_of_weights_are_named(put, tmp_path, block_bytes, caplog):
    paths = [put("a.csv", "source,target,year\n0,1,1998\n1,2,2004\n"), put("b.csv", "source,target,hour\n2,3,7\n")]
    prepare_graph(paths, tmp_path / "g")
    assert "a.csv: column 'year' is read as edge weight (1998 to 2004)" in caplog.text
    assert "b.csv: column 'hour' is read as edge weight (7 to 7)" in caplog.text


def test_files_that_do_not_fit_together(put, tmp_path):
    edges, weighted = put("e.csv", "0,1\n"), put("w.csv", "0,1,2\n")
    with pytest.raises(ReadError, match=r"w\.csv has 3 columns and .*e\.csv 2; give weights in all or in none"):
        prepare_graph([edges, weighted], tmp_path / "g")
    features = [put("f1.csv", "id,h\n0,1\n"), put("f2.csv", "id,mass\n1,3\n")]
    with pytest.raises(FeatureError, match=r"f2\.csv has other columns than"):
        prepare_graph([edges], tmp_path / "g", features=features)
    with pytest.raises(LabelError, match="expected one value for each of the 2 nodes"):
        prepare_graph([edges], tmp_path / "g", labels=put("y.npy", np.arange(3)))


# Bad rows: what is found, where, and what is left without it.


BAD = {
    "malformed lines": ("0,1\n1,2,3\n2,0\n", "id,h\n0,1\n1,2\n2,3\n", "e.csv, line 2: 3 fields"),
    "empty ids": ("0,1\n1,\n2,0\n", "id,h\n0,1\n1,2\n2,3\n", "e.csv, line 2: a node id is empty"),
    "repeated ids": ("0,1\n2,0\n", "id,h\n0,1\n1,2\n0,9\n2,3\n", "x.csv, line 4: node id '0' is already at "),
    "features that are not finite": ("0,1\n2,0\n", "id,h\n0,1\nq,nan\n1,2\n2,3\n", "x.csv, line 3: feature 'h' is not"),
    "edges of nodes without features": (
        "0,1\n9,0\n2,0\n",
        "id,h\n0,1\n1,2\n2,3\n",
        "e.csv, line 2: node id '9' has no",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_rows_are_refused_or_skipped(put, tmp_path, block_bytes, kind, caplog):
    edges, features, message = BAD[kind]
    paths = {"edges": [put("e.csv", edges)], "output": tmp_path / "g", "features": [put("x.csv", features)]}
    with pytest.raises(ReadError) as refused:
        prepare_graph(**paths)
    assert f"{kind}: 1" in str(refused.value)
    assert message in str(refused.value)
    assert not (tmp_path / "g").exists()
    assert prepare_graph(**paths, on_bad="skip")["skipped"] == {kind: 1}
    assert message in caplog.text
    clean = read_graph(put("clean.csv", "0,1\n2,0\n"), features=put("clean-x.csv", "id,h\n0,1\n1,2\n2,3\n"))
    assert open_prepared(tmp_path / "g").hash == clean.hash


def test_a_skipped_row_leaves_the_kind_of_the_other_ids_alone(put, tmp_path):
    edges = put("e.csv", "1,2\n2,10\n,5\n10,3\n")
    prepare_graph([edges], tmp_path / "g", on_bad="skip")
    graph, clean = open_prepared(tmp_path / "g"), read_graph(put("clean.csv", "1,2\n2,10\n10,3\n"))
    assert graph.ids.tolist() == clean.ids.tolist() == [1, 2, 3, 10]
    assert graph.hash == clean.hash


def test_repeats_across_blocks_that_end_in_weights_of_one_are_no_weights(tmp_path):
    pair, mirror = np.array([1]), np.array([1 << 32])  # row 0, column 1 and the other way round
    blocks_ = [(pair, np.float32([0.5])), (np.concatenate([pair, mirror]), np.float32([1, 1]))]
    assert write_adjacency(tmp_path, blocks_, 2) == 2
    assert not (tmp_path / "weights.npy").exists()


def test_all_bad_rows_are_counted_and_the_first_few_located(put, tmp_path):
    lines = ["a,b,1"] + ["a,b,x"] * 20 + ["a,b,-1", "b,c,2"]
    with pytest.raises(ReadError) as refused:
        prepare_graph([put("e.csv", "\n".join(lines))], tmp_path / "g")
    text = str(refused.value)
    assert "malformed lines: 20, unusable weights: 1" in text
    assert [number for number in range(1, 30) if f"e.csv, line {number}" in text] == [2, 3, 4, 5, 6, 22]
    assert "column 3: 'x' is not a number" in text
    assert "--on-bad skip" in text


def test_rows_of_arrays_and_parquet(put, tmp_path):
    features = put("x.npy", np.array([[1.0], [np.inf], [2.0]]))
    with pytest.raises(ReadError, match=r"x\.npy, row 1: feature 1 is not a finite"):
        prepare_graph([put("e.csv", "0,2\n")], tmp_path / "g", features=[features])
    prepare_graph([put("e.csv", "0,2\n")], tmp_path / "g", features=[features], on_bad="skip")
    graph = open_prepared(tmp_path / "g")
    assert graph.ids.tolist() == [0, 2]
    assert graph.num_edges == 2
    frame = pd.DataFrame({"source": [0, None, 2], "target": [2, 2, 0]})
    with pytest.raises(ReadError, match=r"e\.parquet, row 1: a node id is empty"):
        prepare_graph([put("e.parquet", frame)], tmp_path / "h")


def test_labels_of_unknown_nodes_and_repeated_ones(put, tmp_path):
    edges, labels = put("e.csv", "a,b\n"), put("y.csv", "a,1\nc,unknown\na,2\n")
    with pytest.raises(ReadError) as refused:
        prepare_graph([edges], tmp_path / "g", labels=labels)
    assert "y.csv, line 2: node id 'c' is not a node" in str(refused.value)
    assert "y.csv, line 3: node id 'a' is already at" in str(refused.value)
    prepare_graph([edges], tmp_path / "g", labels=labels, on_bad="skip")
    graph = open_prepared(tmp_path / "g")
    assert (graph.labels.tolist(), graph.classes) == ([1, -1], None)


# The preparation as a whole


def test_an_interrupted_preparation_leaves_nothing_and_can_start_again(put, tmp_path):
    edges = put("e.csv", "0,1\n1,2\n")
    stages = []

    def interrupt(stage, share):
        stages.append(stage)
        if stage == "writing edges":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_graph([edges], tmp_path / "g", on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]
    prepare_graph([edges], tmp_path / "g")
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == [
        "ids.npy", "indices.npy", "indptr.npy", "manifest.json",
    ]  # fmt: skip
    assert stages[0] == "reading edges"


@pytest.mark.parametrize("memory", ["1MB", "lots", "-4GB"])
def test_memory_that_cannot_work(put, tmp_path, memory):
    with pytest.raises(ConfigError, match="give at least 512MB, for example 4GB"):
        prepare_graph([put("e.csv", "0,1\n")], tmp_path / "g", memory=memory)


def test_no_room_is_a_clear_error(put, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise preparation.duckdb.IOException("No space left on device")

    monkeypatch.setattr(preparation._Preparation, "write_edges", fail)
    with pytest.raises(GraphError, match="No space left on device; more --memory or room on the disk may help"):
        prepare_graph([put("e.csv", "0,1\n")], tmp_path / "g")


def test_command_gives_the_codes_of_the_files(run, files):
    paths = files[1]
    code, out, _ = run("prepare", *options(paths), "-o", "g", "--json")
    assert code == 0
    assert json.loads(out)["nodes"] == files[0].num_nodes
    assert run("train", "g", *FAST, "-o", "from-folder", "--no-report")[0] == 0
    assert run("train", *options(paths), *FAST, "-o", "from-files", "--no-report")[0] == 0
    assert np.array_equal(open_codes("from-folder/codes.arrow").packed, open_codes("from-files/codes.arrow").packed)
    code, _, err = run("prepare", paths["edges"], "-o", "g")
    assert (code, "--force" in err) == (1, True)


@pytest.mark.parametrize("labels", [[2018, 2019, -1, 2018], [0, 3, 1, -1], [5, 5, 9_000_000, 7]])
def test_integer_labels_are_the_classes_that_reading_finds(tmp_path, labels):
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\nc,d\n")
    rows = "".join(f"{node},{label}\n" for node, label in zip("abcd", labels, strict=True))
    (tmp_path / "y.csv").write_text(f"id,label\n{rows}")
    prepare_graph([tmp_path / "e.csv"], tmp_path / "g", labels=tmp_path / "y.csv")
    prepared, read = open_prepared(tmp_path / "g"), read_graph(tmp_path / "e.csv", labels=tmp_path / "y.csv")
    assert (prepared.labels == read.labels).all()
    assert prepared.classes == read.classes


def test_a_header_is_named_once(put, tmp_path, block_bytes, caplog):
    caplog.set_level("INFO", "spikegcl")
    features = put("f.csv", "id,h\na,1\nb,2\n")
    prepare_graph([put("e.csv", "source,target\na,b\n")], tmp_path / "g", features=[features])
    assert caplog.text.count("e.csv: the first line (source, target) is read as a header") == 1
    assert caplog.text.count("f.csv: the first line (id, h) is read as a header") == 1


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_an_ignored_column_is_named_once(put, tmp_path, block_bytes, name, caplog):
    caplog.set_level("INFO", "spikegcl")
    table = {"": [0, 1], "id": ["a", "b"], "h": [1.0, 2.0]}
    features = put(name, ",id,h\n0,a,1\n1,b,2\n" if name == "x.csv" else pd.DataFrame(table))
    prepare_graph([put("e.csv", "a,b\n")], tmp_path / "g", features=[features])
    assert caplog.text.count("ignored 1 column") == 1


def test_comments_are_counted_once(put, tmp_path, block_bytes, caplog):
    caplog.set_level("INFO", "spikegcl")
    prepare_graph([put("e.csv", "# one\na,b\n# two\nb,c\n")], tmp_path / "g")
    assert caplog.text.count("2 lines that begin with # are comments") == 1
