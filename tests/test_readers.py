"""Readers: every kind of file, every bad input with its message, and exact round trips."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.errors import FeatureError, GraphError, LabelError, ReadError, WriteError
from spikegcl.graph import Graph, Split, build_graph
from spikegcl.readers import read_graph, read_labels, read_split, write_graph


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
        ("1,2,3,4\n", r"e\.csv: 4 columns; keep source, target"),
        ("#\n1,2,1\n1,2,nan\n", r"e\.csv, line 3: weight nan must be finite"),
        ("1,2,1\n1,2,-3\n", r"e\.csv, line 2: weight -3\.0 must be finite and not negative"),
    ],
)
def test_bad_edge_list(put, text, message):
    with pytest.raises(ReadError, match=message):
        read_graph(put("e.csv", text))


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("a,b,2\nb,c,0.5\n", "INFO", "e.csv: the third column is read as edge weight (0.5 to 2)"),
        ("value,source,target\n2,a,b\n", "INFO", "e.csv: column 'value' is read as edge weight (2 to 2)"),
        ("source,target,Weight\na,b,2\n", "INFO", "e.csv: column 'Weight' is read as edge weight (2 to 2)"),
        (
            "source,target,year\na,b,1998\nb,c,2004\n",
            "WARNING",
            "'year' is read as edge weight (1998 to 2004); drop the column if it is no weight, else name it weight",
        ),
    ],
)
def test_column_of_weights_is_named(put, text, level, message, caplog):
    caplog.set_level("INFO", "spikegcl")
    read_graph(put("e.csv", text))
    assert [record.levelname for record in caplog.records if message in record.getMessage()] == [level]


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
        ("a,1,2\nb,,3\n", ReadError, r"x\.csv, line 2, column 2: the cell is empty"),
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


@pytest.mark.parametrize("ids", [np.array([7, 3, 5]), np.array(["7", "3", "5"], object), np.array(["7", "3", "5"])])
def test_labels_and_split_of_given_ids(put, ids):
    assert read_labels(put("y.csv", "id,label\n5,1\n7,0\n"), ids).tolist() == [0, -1, 1]
    assert read_labels(put("y.csv", "5,db\n7,ai\n"), ids).tolist() == ["ai", "", "db"]
    assert read_split(put("s.csv", "5,train\n7,test\n3,val\n"), ids).hash == Split([2], [1], [0]).hash
    with pytest.raises(LabelError, match=r"y\.csv, line 1: node id '07' is not a node"):
        read_labels(put("y.csv", "07,1\n"), ids)


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
        build_graph([[0, 1], [1, 2]], weights=[0.1, 0.5], ids=[30, 10, 20]),
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
    with pytest.raises(WriteError, match=r"cannot write .*edges\.csv: .*file is not a folder"):
        write_graph(build_graph([[0], [1]]), put("file", "x"))


@pytest.mark.parametrize(
    ("name", "features"),
    [("edges.csv", np.ones((2, 1))), ("features.csv", np.ones((2, 1))), ("features.npz", np.eye(2, 9))],
)
def test_writing_where_a_folder_is(tmp_path, name, features):
    (tmp_path / name).mkdir()
    with pytest.raises(WriteError, match=f"cannot write {tmp_path / name}: Is a directory"):
        write_graph(build_graph([[0], [1]], features), tmp_path)


def test_files_are_what_other_programs_expect(tmp_path):
    graph = build_graph(
        [[1, 2], [0, 1]], [[0.5], [1], [2]], ids=["a", "b,c", "d"], columns=["f"], labels=["x", "", "y"]
    )
    paths = write_graph(graph, tmp_path)
    assert pd.read_csv(paths["edges"]).values.tolist() == [["a", "b,c"], ["b,c", "d"]]
    assert pd.read_csv(paths["features"]).to_dict("list") == {"id": ["a", "b,c", "d"], "f": [0.5, 1, 2]}
    assert pd.read_csv(paths["labels"]).to_dict("list") == {"id": ["a", "d"], "label": ["x", "y"]}


def test_labels_below_zero_are_counted_as_none_and_odd_names_are_named(tmp_path, caplog):
    caplog.set_level("INFO", "spikegcl")
    table = tmp_path / "y.csv"
    table.write_text("id,label\n0,-1\n1,0\n2,1\n")
    assert read_labels(table, np.arange(3)).tolist() == [-1, 0, 1]
    assert "1 of 3 nodes have no label" in caplog.text
    table.write_text("id,label\n0,NA\n1,b\n2,c\n")
    read_labels(table, np.arange(3))
    assert "NA is taken for the name of a class" in caplog.text
