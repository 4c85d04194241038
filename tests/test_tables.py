"""Tables: separators, headers, ids and every malformed file with its line, as read_graph meets them."""

from __future__ import annotations

import gzip
import logging

import numpy as np
import pandas as pd
import pytest

from spikegcl.errors import GraphError, ReadError
from spikegcl.graph import build_graph
from spikegcl.readers import read_graph


@pytest.fixture
def put(tmp_path):
    """Write text, bytes or a data frame to a file and return its path."""

    def write(name: str, content):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8", newline="")
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.to_parquet(path)
        return path

    return write


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
    assert graph.hash == build_graph([[0], [1]], weights=[2], ids=["a", "b"]).hash


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"e\.csv is empty"),
        ("# only\n\n# comments\n", r"e\.csv is empty"),
        ("1,2\n3\n4,5\n", r"e\.csv, line 2: 1 fields, but the first line has 2"),
        ("# c\n1,2\n\n3,4,5\n", r"e\.csv, line 4: 3 fields, but the first line has 2"),
        ("source,target\n1,2\n3,4,5\n", r"e\.csv, line 3: 3 fields"),
        ("1\n2\n", r"e\.csv: 1 column; expected 2"),
        ("1,2,0.5\n3,4,heavy\n", r"e\.csv, line 2, column 3: 'heavy' is not a number"),
        ("source,target,w\n1,2,\n", r"e\.csv, line 2, column 'w': the cell is empty"),
        ("1;2;0,5\n3;4;0,7\n", r"e\.csv, line 1, column 3: '0,5' is not a number"),
        ("1,2\n,3\n", r"e\.csv, line 2: a node id is empty"),
        ('1,2\n"3,4\n', r"e\.csv, line 2: 1 fields"),
    ],
)
def test_malformed_table(put, text, message):
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
        read_graph(put("e.csv", "0,1\n"), features=tmp_path)
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


def test_long_lines(put):
    lines = [",".join([node, *["0.25" + "0" * 96] * 30_000]) for node in "ab"]
    graph = read_graph(put("e.csv", "a,b\n"), features=put("x.csv", "\n".join(lines)))
    assert graph.features.shape == (2, 30_000)
    assert (graph.features == 0.25).all()


def test_a_first_line_that_may_be_a_header_is_named(tmp_path, caplog):
    def read(text: str) -> str:
        caplog.clear()
        (tmp_path / "e.csv").write_text(text)
        read_graph(tmp_path / "e.csv")
        return caplog.text

    assert "line 1: the nodes follower and followee" in read("follower,followee\nann,bob\nbob,cat\n")
    assert "line 1" not in read("ann,dan\nann,bob\nbob,cat\n")
    assert "line 1" not in read("1,2\n3,4\n")
    assert "line 1" not in read("ann,bob\n")


def test_comments_are_counted(tmp_path, caplog):
    caplog.set_level("INFO", "spikegcl")
    path = tmp_path / "e.csv"
    path.write_text("#from,to\na,b\n#tag,b\nb,c\n")
    assert len(read_graph(path).ids) == 3
    assert "2 lines that begin with # are comments" in caplog.text
