"""Readers: every format, every bad input with its message, and exact round trips."""

from __future__ import annotations

import gzip
import logging
import tempfile
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from spikegcl.errors import FeatureError, GraphError, LabelError, ReadError
from spikegcl.graph import Graph, Split, build_graph
from spikegcl.readers import (
    from_networkx,
    from_pyg,
    from_scipy,
    read_graph,
    to_networkx,
    to_pyg,
    to_scipy,
    write_graph,
)


@pytest.fixture
def put(tmp_path):
    """Write text, bytes, an array, a sparse matrix or a data frame to a file and return its path."""

    def write(name: str, content) -> Path:
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        elif isinstance(content, pd.DataFrame):
            content.to_parquet(path)
        else:
            sp.save_npz(path, content)
        return path

    return write


def edges_of(graph: Graph) -> set[tuple]:
    """Undirected edges by id, the lower node index first."""
    coo = sp.triu(graph.adjacency).tocoo()
    return {(graph.ids[u], graph.ids[v]) for u, v in zip(coo.row, coo.col, strict=True)}


def assert_same(left: Graph, right: Graph) -> None:
    assert left.hash == right.hash
    assert left.ids.tolist() == right.ids.tolist()
    assert left.columns == right.columns
    assert left.classes == right.classes
    assert (left.labels is None) == (right.labels is None)
    if left.labels is not None:
        assert left.labels.tolist() == right.labels.tolist()
    assert (left.split and left.split.hash) == (right.split and right.split.hash)


# Edge lists


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.csv", "0,1\n1,2\n"),
        ("e.csv", "0, 1\n1 ,2 \n"),
        ("e.csv", "0;1\n1;2\n"),
        ("e.tsv", "0\t1\n1\t2\n"),
        ("e.txt", "0 1\n1 2\n"),
        ("e.txt", "  0   1\n1 \t 2  \n"),
        ("e.csv", "0,1\r\n1,2\r\n"),
        ("e.csv", "0,1\n1,2"),
        ("e.CSV", "\ufeff0,1\n1,2\n"),
        ("e.txt", "# a comment\n\n0 1\n# another, with 3 fields\n   \n1 2\n"),
        ("e.csv", "0,1\n  \n1,2\n \t"),
        ("e.csv", "source,target\n0,1\n1,2\n"),
        ("e.csv", "Src,DST\n0,1\n1,2\n"),
        ("e.csv", "# by hand\nauthor,paper\n0,1\n1,2\n"),
        ("e.csv", "weight,source,target\n1,0,1\n1,1,2\n"),
        ("e.csv", ",source,target\n0,0,1\n1,1,2\n"),
        ("e.csv", '"0","1"\n"1","2"\n'),
    ],
)
def test_dialects_of_an_edge_list(put, name, text):
    graph = read_graph(put(name, text))
    assert graph.hash == build_graph([[0, 1], [1, 2]]).hash
    assert graph.ids.dtype == np.int64


def test_gzip_and_parquet_hold_the_same_graph(put):
    text = put("e.csv.gz", gzip.compress(b"u,v,w\n5,1,2.5\n1,7,1\n"))
    table = put("e.parquet", pd.DataFrame({"u": [5, 1], "v": [1, 7], "w": [2.5, 1.0]}))
    expected = build_graph([[1, 0], [0, 2]], weights=[2.5, 1], ids=[1, 5, 7])
    assert read_graph(text).hash == read_graph(table).hash == expected.hash


def test_parquet_columns_are_found_by_name(put):
    frame = pd.DataFrame({"weight": [2.0], "target": ["b"], "source": ["a"]})
    graph = read_graph(put("e.parquet", frame))
    assert edges_of(graph) == {("a", "b")}
    assert graph.weights.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a,b\nc,d\n", "abcd"),
        ("a,b\n", "ab"),
        ("a b 0.5\nb c 0.25\n", "abc"),
        ("from,to\na,b\n", "ab"),
        ("\ufefffrom,to\na,b\n", "ab"),
        ("u,v\n", ""),
        ("u,v,0.5\nv,w,0.5\n", "uvw"),
        ("u,x\nv,y\n", "uvxy"),
        ("one,two,strength\na,b,0.5\n", "ab"),
        ("1,b\n2,3\n", "123b"),
        ("a,b\nc,3\n", "3abc"),
    ],
)
def test_header_or_first_edge(put, text, nodes):
    path = put("e.csv", text)
    if nodes:
        assert read_graph(path).ids.tolist() == list(nodes)
    else:
        with pytest.raises(GraphError, match=r"e\.csv: the graph has no nodes"):
            read_graph(path)


def test_a_header_is_logged(put, caplog):
    path = put("e.csv", "a,b\n1,2\n")
    with caplog.at_level(logging.INFO, "spikegcl"):
        assert read_graph(path).num_nodes == 2
    assert "e.csv: the first line (a, b) is read as a header" in caplog.text


def test_dropped_index_column_is_logged(put, caplog):
    path = put("e.csv", ",source,target\n0,a,b\n")
    with caplog.at_level(logging.INFO, "spikegcl"):
        assert read_graph(path).weights is None
    assert "e.csv: ignored 1 column" in caplog.text


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("10,9\n9,-1\n", [-1, 9, 10]),
        ("10,9\n9,x\n", ["10", "9", "x"]),
        ("01,1\n1,2\n", ["01", "1", "2"]),
        ("1.0,2\n", ["1.0", "2"]),
        (f"1,{2**64}\n", ["1", str(2**64)]),
        ("zürich,東京\n", ["zürich", "東京"]),
        ('"a, b","say ""hi"""\n', ["a, b", 'say "hi"']),
        ('"a  b" c\n', ["a  b", "c"]),
        ('"#1",b\n', ["#1", "b"]),
        ("NA,null\n", ["NA", "null"]),
        ("C#,F#\n", ["C#", "F#"]),
    ],
)
def test_ids_keep_their_spelling(put, text, ids):
    graph = read_graph(put("e.csv", text))
    assert graph.ids.tolist() == ids


def test_shuffled_edge_list_gives_the_same_graph(put):
    lines = [f"n{i},n{i * 7 % 12}" for i in range(12)]
    assert read_graph(put("a.csv", "\n".join(lines))).hash == read_graph(put("b.csv", "\n".join(lines[::-1]))).hash


def test_name_of_the_graph(put):
    path = put("roads.v2.csv", "0,1\n")
    assert read_graph(path).name == "roads"
    assert read_graph(str(path), name="x").name == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"e\.csv is empty"),
        ("# only\n\n# comments\n", r"e\.csv is empty"),
        ("1,2\n3\n4,5\n", r"e\.csv, line 2: 1 fields, but the first line has 2"),
        ("# c\n1,2\n\n3,4,5\n", r"e\.csv, line 4: 3 fields, but the first line has 2"),
        ("source,target\n1,2\n3,4,5\n", r"e\.csv, line 3: 3 fields"),
        ("1,2,3,4\n", r"e\.csv: 4 columns; keep source, target"),
        ("1\n2\n", r"e\.csv: 1 column; expected 2"),
        ("1,2,0.5\n3,4,heavy\n", r"e\.csv, line 2, column 3: 'heavy' is not a number"),
        ("source,target,w\n1,2,\n", r"e\.csv, line 2, column 'w': '' is not a number"),
        ("1;2;0,5\n3;4;0,7\n", r"e\.csv, line 1, column 3: '0,5' is not a number"),
        ("#\n1,2,1\n1,2,nan\n", r"e\.csv, line 3: weight nan must be finite"),
        ("1,2,1\n1,2,-3\n", r"e\.csv, line 2: weight -3\.0 must be finite and not negative"),
        ("1,2\n,3\n", r"e\.csv, line 2: a node id is empty"),
        ('1,2\n"3,4\n', r"e\.csv, line 2: 1 fields"),
    ],
)
def test_malformed_edge_list(put, text, message):
    with pytest.raises(ReadError, match=message):
        read_graph(put("e.csv", text))


def test_error_far_down_a_file_has_its_line(put):
    lines = [f"{i},{i + 1}" for i in range(5000)]
    lines[4321] = "oops"
    with pytest.raises(ReadError, match="line 4322: 1 fields"):
        read_graph(put("e.csv", "\n".join(lines)))


def test_files_that_cannot_be_read(put, tmp_path):
    with pytest.raises(ReadError, match=r"none\.csv does not exist"):
        read_graph(tmp_path / "none.csv")
    with pytest.raises(ReadError, match="is a folder; give the file"):
        read_graph(tmp_path)
    with pytest.raises(ReadError, match=r"e\.xlsx: cannot read \.xlsx; supported: \.csv, \.tsv"):
        read_graph(put("e.xlsx", "1,2"))
    with pytest.raises(ReadError, match="a file without extension"):
        read_graph(put("edges", "1,2"))
    with pytest.raises(ReadError, match=r"l\.csv, line 2: byte 0xff is not UTF-8"):
        read_graph(put("l.csv", b"1,2\n3,\xff\n"))
    with pytest.raises(ReadError, match=r"e\.csv\.gz cannot be read"):
        read_graph(put("e.csv.gz", b"1,2\n"))
    with pytest.raises(ReadError, match=r"t\.csv\.gz cannot be read"):
        read_graph(put("t.csv.gz", gzip.compress(b"1,2\n" * 1000)[:20]))
    with pytest.raises(ReadError, match=r"p\.parquet is not a readable Parquet"):
        read_graph(put("p.parquet", "1,2\n"))


def test_missing_id_in_parquet_has_its_row(put):
    frame = pd.DataFrame({"source": [1, 2, None], "target": [2, 3, 4]})
    with pytest.raises(ReadError, match=r"e\.parquet, row 2: a node id is empty"):
        read_graph(put("e.parquet", frame))


def test_whole_floats_in_parquet_are_integer_ids(put):
    graph = read_graph(put("e.parquet", pd.DataFrame({"source": [12345678901.0], "target": [2.0]})))
    assert graph.ids.tolist() == [2, 12345678901]


def test_parquet_weight_that_is_text(put):
    frame = pd.DataFrame({"source": [1], "target": [2], "kind": ["friend"]})
    with pytest.raises(ReadError, match=r"e\.parquet, column 'kind': .*string is not numbers"):
        read_graph(put("e.parquet", frame))


# Features


def test_keyed_features_give_nodes_order_and_columns(put):
    features = put("x.csv", "id,height,mass\nc,1,2.5\na,0.1,0\nlonely,-3,1e-3\nb,7,8\n")
    graph = read_graph(put("e.csv", "a,b\nb,c\n"), features=features)
    assert graph.ids.tolist() == ["c", "a", "lonely", "b"]
    assert graph.columns == ("height", "mass")
    assert np.array_equal(graph.features, np.array([[1, 2.5], [0.1, 0], [-3, 1e-3], [7, 8]], np.float32))
    assert graph.degrees.tolist() == [1, 1, 0, 2]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("x.csv", "0,5,6\n1,7,8\n", None),
        ("x.tsv", "0\t5\t6\n1\t7\t8\n", None),
        ("x.txt", "0 5 6\n1 7 8\n", None),
        ("x.csv", "a,node_id,b\n5,0,6\n7,1,8\n", ("a", "b")),
        ("x.csv", "key, a,b \n0,5,6\n1,7,8\n", ("a", "b")),
        ("x.csv", ",0,1\n0,5,6\n1,7,8\n", None),
        ("x.csv", ",id,a,b\n9,0,5,6\n9,1,7,8\n", ("a", "b")),
        ("x.parquet", pd.DataFrame({"a": [5, 7], "node": [0, 1], "b": [6.0, 8.0]}), ("a", "b")),
        ("x.npy", np.array([[5, 6], [7, 8]]), None),
        ("x.npz", sp.coo_array(np.array([[5.0, 6], [7, 8]])), None),
    ],
)
def test_formats_of_features(put, name, content, columns):
    graph = read_graph(put("e.csv", "0,1\n"), features=put(name, content))
    assert graph.hash == build_graph([[0], [1]], np.array([[5, 6], [7, 8]])).hash
    assert graph.columns == columns


def test_headerless_features_with_string_ids_lose_no_row(put):
    graph = read_graph(put("e.csv", "a,b\n"), features=put("x.csv", "a,1\nb,2\n"))
    assert graph.ids.tolist() == ["a", "b"]


def test_sparse_features_stay_sparse_and_equal_dense_ones(put):
    dense = np.zeros((4, 30), np.float32)
    dense[[0, 2], [3, 29]] = [1, 0.1]
    edges = put("e.csv", "0,1\n2,3\n")
    graph = read_graph(edges, features=put("x.npz", sp.csr_array(dense)))
    assert graph.is_sparse
    assert graph.hash == read_graph(edges, features=put("x.npy", dense)).hash


def test_integers_beyond_float32_are_rounded(put):
    frame = pd.DataFrame({"id": [0, 1], "f": [2**24 + 1, 7]})
    graph = read_graph(put("e.csv", "0,1\n"), features=put("x.parquet", frame))
    assert graph.features.tolist() == [[2**24], [7]]


def test_long_lines(put):
    lines = [",".join([node, *["0.25" + "0" * 96] * 30_000]) for node in "ab"]
    graph = read_graph(put("e.csv", "a,b\n"), features=put("x.csv", "\n".join(lines)))
    assert graph.features.shape == (2, 30_000)
    assert (graph.features == 0.25).all()


def test_ids_alone_are_a_node_list(put):
    graph = read_graph(put("e.csv", "b,c\n"), features=put("n.csv", "id\nc\na\nb\n"))
    assert graph.ids.tolist() == ["c", "a", "b"]
    assert graph.features is None


@pytest.mark.parametrize("edges", ["1,7\n", "0,1\n1,7\n7,7\n"])
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_edge_beyond_the_rows(put, edges, name):
    content = np.ones((3, 2)) if name == "x.npy" else sp.csr_array(np.ones((3, 2)))
    line = 1 if edges.startswith("1") else 2
    with pytest.raises(
        GraphError, match=rf"e\.csv, line {line}: node id '7' is no row of .*{name} \(0\.\.2\); renumber, or key"
    ):
        read_graph(put("e.csv", edges), features=put(name, content))


def test_string_id_with_row_features(put):
    with pytest.raises(GraphError, match=r"e\.csv, line 2: node id '01' is no row of"):
        read_graph(put("e.csv", "0,1\n01,0\n"), features=put("x.npy", np.ones((2, 2))))


def test_edge_without_a_feature_row(put):
    edges = put("e.csv", "source,target\na,b\nb,x\ny,x\n")
    with pytest.raises(
        FeatureError, match=r"e\.csv, line 3: node id 'x' has no row in .*x\.csv; add .*\(2 such ids in this file\)"
    ):
        read_graph(edges, features=put("x.csv", "id,f\na,1\nb,2\n"))


def test_leading_zeros_are_not_guessed_away(put):
    with pytest.raises(FeatureError, match=r"line 1: node id '01' has no row .*\(1 such id in"):
        read_graph(put("e.csv", "01,2\n"), features=put("x.csv", "id,f\n1,1\n2,2\n"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("id,f\na,1\nb,2\na,3\n", FeatureError, r"x\.csv, line 4: node id 'a' is already at .*x\.csv, line 2"),
        ("id,f,g\na,1,2\nb,2,tall\n", ReadError, r"x\.csv, line 3, column 'g': 'tall' is not a number"),
        ("a,1,2\nb,,3\n", ReadError, r"x\.csv, line 2, column 2: '' is not a number"),
        ("id,f,g\na,1,2\n\nb,2,nan\n", FeatureError, r"x\.csv, line 4: feature 'g' is nan"),
        ("a,1,-inf\nb,2,3\n", FeatureError, r"x\.csv, line 1: feature 2 is -inf"),
        ("a,1\nb,1e39\n", FeatureError, r"x\.csv, line 2: feature 1 is inf"),
        ("id,f,f\na,1,2\nb,1,2\n", FeatureError, r"x\.csv: feature column names must be unique"),
        ("a,1,2\nb,1\n", ReadError, r"x\.csv, line 2: 2 fields"),
        ("", ReadError, r"x\.csv is empty"),
    ],
)
def test_bad_keyed_features(put, content, error, message):
    with pytest.raises(error, match=message):
        read_graph(put("e.csv", "a,b\n"), features=put("x.csv", content))


def test_missing_feature_in_parquet_has_row_and_column(put):
    frame = pd.DataFrame({"id": ["a", "b"], "f": [1.0, None]})
    with pytest.raises(FeatureError, match=r"x\.parquet, row 1: feature 'f' is nan"):
        read_graph(put("e.csv", "a,b\n"), features=put("x.parquet", frame))


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("x.npy", np.array([[1.0], [np.nan]]), FeatureError, r"x\.npy: feature row 1, column 0 is nan"),
        ("x.npy", np.ones(2), FeatureError, r"x\.npy has shape \(2,\)"),
        ("x.npy", np.array([[{}], [1]], object), ReadError, r"x\.npy cannot be read: Object arrays"),
        ("x.npy", np.array([["a"], ["b"]]), FeatureError, r"x\.npy: features must be numbers"),
        ("x.npy", "not an array", ReadError, r"x\.npy cannot be read: .*write it with numpy\.save"),
        ("x.npz", "not an archive", ReadError, r"x\.npz cannot be read: .*scipy\.sparse\.save_npz"),
        (
            "x.npz",
            sp.csr_array(np.array([[0, np.inf], [0, 0]])),
            FeatureError,
            r"x\.npz: feature row 0, column 1 is inf",
        ),
        ("x.json", "{}", ReadError, r"cannot read \.json; supported: .*\.npy, \.npz"),
    ],
)
def test_bad_row_features(put, name, content, error, message):
    with pytest.raises(error, match=message):
        read_graph(put("e.csv", "0,1\n"), features=put(name, content))


def test_npz_that_is_no_sparse_matrix(put, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    with pytest.raises(ReadError, match=r"x\.npz cannot be read"):
        read_graph(put("e.csv", "0,1\n"), features=tmp_path / "x.npz")


def test_npz_with_indices_outside_the_matrix(put):
    matrix = sp.csr_array((np.ones(1), np.array([0]), np.array([0, 1, 1])), shape=(2, 2))
    matrix.indices[0] = 1000
    with pytest.raises(ReadError, match=r"x\.npz cannot be read"):
        read_graph(put("e.csv", "0,1\n"), features=put("x.npz", matrix))


# Labels and splits


@pytest.mark.parametrize(
    ("name", "content", "labels", "classes"),
    [
        ("y.csv", "id,label\n2,5\n0,3\n", [3, -1, 5], None),
        ("y.csv", "2,5\n0,3\n", [3, -1, 5], None),
        ("y.csv", "label,id\n5,2\n3,0\n", [3, -1, 5], None),
        ("y.csv", "paper,topic\n2,ai\n0,db\n", [1, -1, 0], ("ai", "db")),
        ("y.tsv", "2\tai\n0\tdb\n1\t\n", [1, -1, 0], ("ai", "db")),
        ("y.csv", "0,01\n1,1\n2,1\n", [0, 1, 1], ("01", "1")),
        ("y.csv", "0,-1\n1,2\n", [-1, 2, -1], None),
        ("y.csv", "id,label\n", [-1, -1, -1], None),
        ("y.parquet", pd.DataFrame({"id": [2, 0, 1], "label": [5.0, 3.0, None]}), [3, -1, 5], None),
        ("y.parquet", pd.DataFrame({"id": [2, 0], "label": pd.Categorical(["ai", "db"])}), [1, -1, 0], ("ai", "db")),
        ("y.npy", np.array([3, -1, 5]), [3, -1, 5], None),
        ("y.npy", np.array(["db", "", "ai"]), [1, -1, 0], ("ai", "db")),
        ("y.npy", np.array([b"db", b"", b"ai"]), [1, -1, 0], ("ai", "db")),
    ],
)
def test_formats_of_labels(put, name, content, labels, classes):
    graph = read_graph(put("e.csv", "0,1\n1,2\n"), labels=put(name, content))
    assert graph.labels.tolist() == labels
    assert graph.classes == classes


def test_unlabelled_nodes_are_counted_in_the_log(put, caplog):
    with caplog.at_level(logging.INFO, "spikegcl"):
        read_graph(put("e.csv", "a,b\nb,c\n"), labels=put("y.csv", "id,label\na,1\n"))
    assert "y.csv: 2 of 3 nodes have no label" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("y.csv", "0,1\n8,1\n9,1\n", LabelError, r"y\.csv, line 2: node id '8' is not a node .*\(2 such ids"),
        ("y.csv", "0,1\n1,2\n0,1\n", LabelError, r"y\.csv, line 3: node id '0' is already at .*line 1"),
        ("y.csv", "0\n1\n", ReadError, r"y\.csv: 1 columns; keep two"),
        ("y.csv", "0,1,2\n", ReadError, r"y\.csv: 3 columns; keep two"),
        ("y.npy", np.array([1, 2]), LabelError, r"y\.npy has shape \(2,\); expected one value for each of the 3"),
        ("y.npy", np.array([1, None, {}], object), ReadError, r"y\.npy cannot be read"),
        ("y.npz", b"", ReadError, r"cannot read \.npz"),
    ],
)
def test_bad_labels(put, name, content, error, message):
    with pytest.raises(error, match=message):
        read_graph(put("e.csv", "0,1\n1,2\n"), labels=put(name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.csv", "id,part\n0,train\n1,Val\n2,test\n4,train\n"),
        ("s.csv", "0,train\n1,valid\n2,test\n4,train\n"),
        ("s.csv", "0,0\n1,1\n2,2\n4,0\n"),
        ("s.parquet", pd.DataFrame({"id": [4, 0, 1, 2], "part": ["train", "train", "validation", "test"]})),
        ("s.npy", np.array(["train", "val", "test", "", "train"])),
        ("s.npy", np.array([0, 1, 2, -1, 0])),
    ],
)
def test_formats_of_a_split(put, name, content, caplog):
    with caplog.at_level(logging.INFO, "spikegcl"):
        graph = read_graph(put("e.csv", "0,1\n1,2\n3,4\n"), split=put(name, content))
    assert graph.split.hash == Split([0, 4], [1], [2]).hash
    assert "1 of 5 nodes are in no part" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.csv", "0,train\n1,dev\n", r"s\.csv, line 2: 'dev' is no part of a split; use train, val or test"),
        ("s.csv", "0,train\n0,test\n", r"s\.csv, line 2: node id '0' is already at"),
        ("s.csv", "0,train\n5,test\n", r"s\.csv, line 2: node id '5' is not a node"),
        ("s.npy", np.array([0, 3]), r"s\.npy, row 1: '3' is no part"),
        ("s.npy", np.array([0, 1, 2]), r"s\.npy has shape \(3,\)"),
    ],
)
def test_bad_split(put, name, content, message):
    with pytest.raises(LabelError, match=message):
        read_graph(put("e.csv", "0,1\n"), split=put(name, content))


# Round trips


def round_trip(graph: Graph) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        return read_graph(**write_graph(graph, Path(folder) / "new" / "graph"))


@pytest.mark.parametrize(
    "graph",
    [
        build_graph([[0, 1], [1, 2]]),
        build_graph([[0], [1]], num_nodes=4, ids=["d", "a", "c", "b"]),
        build_graph([], num_nodes=2, labels=[1, -1]),
        build_graph([[0, 1], [1, 2]], weights=[0.1, 0.0], ids=[30, 10, 20]),
        build_graph([[0], [1]], np.float32([[0.1, 1 / 3], [3e38, -1e-45]]), columns=["a,b", "c d"]),
        build_graph([[0], [1]], np.eye(2), columns=["id", "node"], ids=["node", "id"]),
        build_graph([[0], [1]], np.eye(8), ids=list("hgfedcba"), labels=["b", "a", "", "NA", "", "", "a", "01"]),
        build_graph([[0], [1]], np.eye(8), labels=range(8), split=Split([7, 0], [3], [])),
        build_graph([[0], [1]], np.eye(8), columns=[f"w {i}" for i in range(8)]),
    ],
    ids=lambda graph: f"{graph.num_nodes}-{graph.num_edges}-{graph.num_features}",
)
def test_round_trip(graph):
    assert_same(round_trip(graph), graph)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=6).filter(
    lambda name: name == name.strip(" \t")
)
awkward = st.sampled_from(
    ["a b", "01", "1", "ü", "a,b", 'say "x"', '"', "#c", "id", "source", "nan", "a;b", "\ta\u00a0"]
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def graphs(draw):
    ids = draw(st.lists(names | awkward.map(str.strip), min_size=1, max_size=6, unique=True))
    node = st.integers(0, len(ids) - 1)
    edges = draw(st.lists(st.tuples(node, node, st.floats(0, 1e6, width=32)), max_size=8))
    width = draw(st.integers(0, 3))
    cell = st.sampled_from([0.0, 0.0, 0.0, 1.0]) | numbers
    rows = draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=len(ids), max_size=len(ids)))
    weighted = draw(st.booleans())
    return build_graph(
        np.array([edge[:2] for edge in edges], int).reshape(-1, 2).T,
        np.array(rows, np.float32) if width else None,
        num_nodes=len(ids),
        weights=[edge[2] for edge in edges] if weighted else None,
        ids=ids,
        labels=draw(st.lists(st.sampled_from(["x", "y z", "", "é"]), min_size=len(ids), max_size=len(ids))),
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(graphs())
def test_any_graph_survives_its_files(graph):
    again = round_trip(graph)
    assert again.hash == graph.hash
    assert list(map(str, again.ids)) == list(graph.ids)
    assert again.labels.tolist() == graph.labels.tolist()
    assert (again.classes or ()) == graph.classes


def test_sparse_features_by_row_are_written_sparse(tmp_path):
    graph = build_graph([[0], [1]], np.eye(8))
    assert write_graph(graph, tmp_path)["features"].name == "features.npz"


@pytest.mark.parametrize("bad", ["", " a", "a\t", "a\nb", "a\rb", "\ud800"])
def test_ids_that_csv_cannot_hold_are_refused(bad, tmp_path):
    with pytest.raises(GraphError, match="cannot be written to CSV"):
        write_graph(build_graph([[0], [1]], ids=[bad, "b"]), tmp_path)
    with pytest.raises(GraphError, match="cannot be written to CSV"):
        write_graph(build_graph([[0], [1]], np.ones((2, 1)), columns=[bad]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_writing_where_a_file_is(put):
    with pytest.raises(ReadError, match="cannot be created"):
        write_graph(build_graph([[0], [1]]), put("file", "x"))


def test_files_are_what_other_programs_expect(tmp_path):
    graph = build_graph(
        [[1, 2], [0, 1]], [[0.5], [1], [2]], ids=["a", "b,c", "d"], columns=["f"], labels=["x", "", "y"]
    )
    paths = write_graph(graph, tmp_path)
    assert pd.read_csv(paths["edges"]).values.tolist() == [["a", "b,c"], ["b,c", "d"]]
    assert pd.read_csv(paths["features"]).to_dict("list") == {"id": ["a", "b,c", "d"], "f": [0.5, 1, 2]}
    assert pd.read_csv(paths["labels"]).to_dict("list") == {"id": ["a", "d"], "label": ["x", "y"]}


# Foreign objects


@pytest.fixture(params=["dense", "sparse", "bare"])
def full_graph(request):
    features = {"dense": np.arange(10.0).reshape(5, 2), "sparse": np.eye(5, 9), "bare": None}[request.param]
    return build_graph(
        [[0, 1, 3], [1, 2, 0]],
        features,
        num_nodes=5,
        weights=[1, 2, 0.5],
        ids=["a", "b", "c", "d", "e"],
        labels=["x", "y", "", "x", "y"],
        split=Split([0, 1], [4], [3]),
    )


def test_networkx_round_trip(full_graph):
    foreign = to_networkx(full_graph)
    assert foreign.nodes["e"]["split"] == "val"
    assert "y" not in foreign.nodes["c"]
    assert foreign.edges["a", "d"]["weight"] == 0.5
    again = from_networkx(foreign, None if full_graph.features is None else "x", labels="y")
    assert again.hash == full_graph.hash
    assert again.classes == ("x", "y")
    assert again.labels.tolist() == [0, 1, -1, 0, 1]


def test_networkx_nodes_of_any_kind():
    graph = from_networkx(nx.Graph([(("t", 1), "b"), ("b", 3)]))
    assert edges_of(graph) == {("('t', 1)", "b"), ("b", "3")}
    assert from_networkx(nx.Graph([(5, 3)])).ids.tolist() == [5, 3]
    with pytest.raises(GraphError, match="'1' occurs more than once"):
        from_networkx(nx.Graph([(1, "1"), ("a", 1)]))


def test_networkx_direction_parallel_edges_and_weights():
    foreign = nx.MultiDiGraph([(0, 1, {"weight": 2}), (1, 0, {"weight": 3}), (1, 2)])
    assert from_networkx(foreign).adjacency.toarray().tolist() == [[0, 3, 0], [3, 0, 1], [0, 1, 0]]
    assert from_networkx(foreign, weight=None).weights is None
    foreign.add_edge(0, 2, weight="heavy")
    with pytest.raises(GraphError, match="edge attribute 'weight' is not a number"):
        from_networkx(foreign)


def test_networkx_attributes():
    foreign = nx.path_graph(3)
    nx.set_node_attributes(foreign, {0: 1.5, 1: 2, 2: 3}, "age")
    nx.set_node_attributes(foreign, {0: 4, 2: 1}, "group")
    graph = from_networkx(foreign, "age", labels="group")
    assert graph.features.tolist() == [[1.5], [2], [3]]
    assert (graph.labels.tolist(), graph.classes) == ([4, -1, 1], None)
    assert from_networkx(foreign, np.ones((3, 2))).num_features == 2
    with pytest.raises(FeatureError, match=r"1 nodes have no attribute 'group', e\.g\. 1"):
        from_networkx(foreign, "group")
    foreign.nodes[1]["age"] = [1, 2]
    with pytest.raises(FeatureError, match="'age' is not a vector of one length"):
        from_networkx(foreign, "age")


@pytest.mark.parametrize("dense", [True, False])
def test_pyg_round_trip(full_graph, dense):
    data = to_pyg(full_graph, dense=dense)
    data.validate()
    assert data.num_edges == full_graph.num_edges
    if full_graph.features is not None:
        assert data.x.layout == (torch.sparse_csr if full_graph.is_sparse and not dense else torch.strided)
    again = from_pyg(data, name=full_graph.name)
    assert_same(again, full_graph)


def test_pyg_shares_no_memory():
    graph = build_graph([[0], [1]], np.ones((2, 2)))
    to_pyg(graph).x.zero_()
    assert graph.features.all()


def test_pyg_details(caplog):
    edges = torch.tensor([[0, 1], [1, 2]])
    with caplog.at_level(logging.INFO, "spikegcl"):
        graph = from_pyg(
            Data(
                x=torch.ones(4, 2, dtype=torch.bfloat16, requires_grad=True),
                edge_index=edges,
                edge_attr=torch.ones(2, 3),
                y=torch.tensor([[1], [0], [2], [1]]),
                train_mask=torch.tensor([True, False, False, False]),
            )
        )
    assert (graph.num_nodes, graph.labels.tolist(), graph.split.train.tolist()) == (4, [1, 0, 2, 1], [0])
    assert len(graph.split.test) == 0
    assert "ignored edge_attr of 2 edges" in caplog.text
    with pytest.raises(GraphError, match="no edge_index"):
        from_pyg(Data(x=torch.ones(2, 2)))
    with pytest.raises(LabelError, match=r"val_mask has shape \(3, 2\) for 3 nodes; choose one split"):
        from_pyg(Data(edge_index=edges, num_nodes=3, val_mask=torch.ones(3, 2, dtype=torch.bool)))


def test_scipy_round_trip(full_graph):
    adjacency = to_scipy(full_graph)
    again = from_scipy(adjacency, full_graph.features, ids=full_graph.ids, labels=full_graph.labels)
    assert again.hash == full_graph.hash
    adjacency.data[:] = 7
    assert full_graph.weights.max() == 2
    with pytest.raises(GraphError, match=r"got ndarray; make a sparse matrix of it with scipy\.sparse\.csr_array"):
        from_scipy(np.ones((2, 2)))
