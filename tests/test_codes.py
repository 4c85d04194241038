"""Codes as a value and as a file: what goes in comes out, and a file that is not whole is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from spikegcl import bits
from spikegcl.codes import Codes, open_codes
from spikegcl.errors import CodesError

if TYPE_CHECKING:
    from pathlib import Path

INFO = {"model": "abc", "threshold": "1.0"}


def sample(nodes: int = 9, bits: int = 21, named: bool = True, channels: int = 7) -> Codes:
    matrix = np.random.default_rng(nodes + bits).random((nodes, bits)) < 0.4
    plain = Codes.from_bits(matrix, [f"n{n}é" for n in range(nodes)] if named else None, channels)
    return Codes(plain.packed, plain.ids, plain.steps, plain.channels, INFO)


def same(a: Codes, b: Codes) -> bool:
    return (
        np.array_equal(a.packed, b.packed)
        and a.ids.tolist() == b.ids.tolist()
        and (a.steps, a.channels, a.info) == (b.steps, b.channels, b.info)
    )


def write(table: pa.Table, path: Path, **changes: str | None) -> Path:
    """Write an Arrow table with some of its metadata changed or, by None, removed."""
    meta = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    meta = {key: value for key, value in {**meta, **changes}.items() if value is not None}
    table = table.replace_schema_metadata(meta)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("nodes", [0, 1, 9])
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_gives_back_what_was_saved(tmp_path, nodes, named, verify):
    codes = sample(nodes, named=named)
    codes.save(tmp_path / "c.arrow")
    opened = open_codes(tmp_path / "c.arrow", verify=verify)
    assert same(opened, codes)
    assert opened.checksum == codes.checksum
    assert [path.name for path in tmp_path.iterdir()] == ["c.arrow"]


@pytest.mark.parametrize("named", [True, False])
def test_a_part_of_mapped_codes_saves_like_fresh_codes(tmp_path, named):
    codes = sample(named=named)
    codes.save(tmp_path / "all.arrow")
    open_codes(tmp_path / "all.arrow")[2:7].save(tmp_path / "part.arrow")
    assert same(open_codes(tmp_path / "part.arrow"), codes[2:7])
    assert codes.select(codes.ids[2:7]).checksum == codes[2:7].checksum


def test_opening_maps_the_bits_and_leaves_ids_alone(tmp_path):
    sample(200, 512, channels=8).save(tmp_path / "c.arrow")
    allocated = pa.total_allocated_bytes()
    codes = open_codes(tmp_path / "c.arrow")
    assert pa.total_allocated_bytes() - allocated < codes.packed.nbytes
    assert not codes.packed.flags.writeable
    assert "ids" not in vars(codes) and "positions" not in vars(codes)
    assert codes.select(["n3é"]).ids.tolist() == ["n3é"]


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_cut_anywhere_is_refused(tmp_path, verify):
    sample(40).save(tmp_path / "c.arrow")
    raw = (tmp_path / "c.arrow").read_bytes()
    for length in range(0, len(raw), 7):
        (tmp_path / "cut.arrow").write_bytes(raw[:length])
        with pytest.raises(CodesError, match=r"cut\.arrow .*cut short"):
            open_codes(tmp_path / "cut.arrow", verify=verify)


@pytest.mark.parametrize("named", [True, False])
def test_no_flipped_bit_changes_codes_unnoticed(tmp_path, named):
    """A flip is refused, or lies where nothing is stored (padding, the spare copy of the schema)."""
    codes = sample(named=named)
    codes.save(tmp_path / "c.arrow")
    raw = (tmp_path / "c.arrow").read_bytes()
    refused = 0
    for place in range(0, 8 * len(raw), 11):
        flipped = bytearray(raw)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / "f.arrow").write_bytes(flipped)
        try:
            assert same(open_codes(tmp_path / "f.arrow"), codes)
        except CodesError:
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("column", ["id", "code"])
def test_flipped_content_is_found_by_verifying(tmp_path, column):
    codes = sample(named=False)
    codes.save(tmp_path / "c.arrow")
    raw = bytearray((tmp_path / "c.arrow").read_bytes())
    content = codes.packed.tobytes() if column == "code" else codes.ids.tobytes()
    raw[raw.index(content)] ^= 1
    (tmp_path / "c.arrow").write_bytes(raw)
    with pytest.raises(CodesError, match="checksum"):
        open_codes(tmp_path / "c.arrow")
    open_codes(tmp_path / "c.arrow", verify=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "format version '2', this release reads 1; upgrade spikegcl"),
        ({"version": "0"}, "format version '0', this release reads 1; write it again"),
        ({"format": "other"}, "is an Arrow file, but not one of codes"),
        ({"bits": "20"}, "says '20' bits but has 3 steps of 7 channels"),
        ({"steps": "9"}, "63 bits take 8 bytes per node, but the codes have 3"),
        ({"steps": "three"}, "invalid literal"),
        ({"steps": "0"}, "at least one step"),
        ({"checksum": None}, "its metadata lacks checksum"),
        ({"model": "xyz"}, "do not match their checksum"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path, changes, message):
    path = write(sample().to_arrow(), tmp_path / "c.arrow", **changes)
    with pytest.raises(CodesError, match=message) as raised:
        open_codes(path)
    assert "c.arrow" in str(raised.value)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    meta = table.schema.metadata
    return table.set_column(table.column_names.index(name), name, values).replace_schema_metadata(meta)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("code", pa.array([b"abc"] * 9, pa.binary()), "code is binary, not fixed_size_binary"),
        ("code", pa.array([b"abc"] * 8 + [None], pa.binary(3)), "1 entries of its column code are missing"),
        ("code", pa.array([b"abcd"] * 9, pa.binary(4)), "21 bits take 3 bytes per node, but the codes have 4"),
        ("code", pa.array([b"\xff\xff\xff"] * 9, pa.binary(3)), "row 0 has bits set past bit 21"),
        ("id", pa.array([0.5] * 9), "id is double, not integers or strings"),
        ("id", pa.array(["a"] * 8 + [None]), "1 entries of its column id are missing"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, column, values, message):
    path = write(with_column(sample().to_arrow(), column, values), tmp_path / "c.arrow")
    with pytest.raises(CodesError, match=message):
        open_codes(path)


def test_foreign_and_missing_files_are_refused(tmp_path):
    pd.DataFrame({"id": [1, 2], "code": [b"a", b"b"]}).to_feather(tmp_path / "pandas.arrow")
    with pytest.raises(CodesError, match="not one of codes"):
        open_codes(tmp_path / "pandas.arrow")
    (tmp_path / "text.arrow").write_text("source,target\n0,1\n" * 100)
    with pytest.raises(CodesError, match="not a code file"):
        open_codes(tmp_path / "text.arrow")
    for path in (tmp_path, tmp_path / "none.arrow"):
        with pytest.raises(CodesError, match="there is no code file"):
            open_codes(path)
    write(sample().to_arrow().drop_columns("id"), tmp_path / "few.arrow")
    with pytest.raises(CodesError, match="needs one column 'id'"):
        open_codes(tmp_path / "few.arrow")


@pytest.mark.parametrize("ids", [[7, 3, 5, 3], ["b", "a", "c", "a"]])
def test_repeated_ids_are_refused(tmp_path, ids):
    codes = Codes.from_bits(np.eye(4), ids)
    with pytest.raises(CodesError, match=f"{ids[1]!r} occurs more than once"):
        codes.save(tmp_path / "c.arrow")
    write(codes.to_arrow(), tmp_path / "c.arrow")
    with pytest.raises(CodesError, match=rf"{ids[1]!r} occurs more than once in .*c\.arrow"):
        open_codes(tmp_path / "c.arrow")
    with pytest.raises(CodesError, match="occurs more than once"):
        open_codes(tmp_path / "c.arrow", verify=False).select(ids[:1])
    with pytest.raises(CodesError, match="occurs more than once in the parts"):
        Codes.concat([Codes.from_bits(np.eye(2), ids[:2]), Codes.from_bits(np.eye(2), ids[2:])])


def test_a_file_written_in_pieces_by_another_tool_is_read_whole(tmp_path):
    codes = sample()
    table = codes.to_arrow()
    table = with_column(table, "id", table["id"].cast(pa.large_string()))
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    assert same(open_codes(tmp_path / "c.arrow"), codes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Codes(np.zeros((2, 2), np.uint8), [1], 2, 8), "1 ids for 2 codes"),
        (lambda: Codes(np.zeros((2, 2), np.uint8), [1, 2], 2, 9), "18 bits take 3 bytes"),
        (lambda: Codes(np.zeros((2, 2), np.int64), [1, 2], 2, 8), "uint8"),
        (lambda: Codes(np.zeros((2, 2), np.uint8), [1, 2], 0, 8), "at least one step"),
        (lambda: Codes(np.full((2, 1), 8, np.uint8), [1, 2], 1, 3), "bits set past bit 3"),
        (lambda: Codes.from_bits([1, 0]), "one row per node"),
        (lambda: Codes.from_bits(np.eye(5), channels=2), "5 bits are not a whole number of steps of 2"),
        (lambda: Codes.from_bits(np.eye(5), channels=0), "not a whole number of steps"),
        (lambda: Codes.from_bits(np.eye(1), [2**63]), "64 bits"),
        (lambda: Codes.concat([]), "no codes"),
        (lambda: Codes.concat([sample(), sample(bits=14)]), "2 x 7 bits do not fit codes of 3 x 7"),
        (lambda: sample().truncate(4), "cannot keep 4 of 3 steps"),
        (lambda: sample().truncate(0), "cannot keep 0"),
        (lambda: sample().select(["nobody"]), r"no code has the id 'nobody' \(9 codes; ids look like 'n0é'\)"),
        (lambda: sample(0).select(["nobody"]), "none at all"),
        (lambda: sample().hamming(sample(bits=14)), "21 and 14 bits"),
        (lambda: sample().linear(np.zeros((20, 2))), r"21 x C weight, got \(20, 2\)"),
        (lambda: sample().linear(np.zeros(21)), "21 x C weight"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(CodesError, match=message):
        build()


def test_rows_can_be_chosen_in_every_way():
    codes = sample()
    for rows in (3, -1, np.int64(2), [1, 1, 0], np.array([], np.int64), np.arange(9) % 2 == 0, slice(None, None, -2)):
        expected = np.atleast_2d(codes.to_numpy()[rows])
        assert np.array_equal(codes[rows].to_numpy(), expected)
        assert codes[rows].ids.tolist() == np.atleast_1d(codes.ids[rows]).tolist()
        assert codes[rows].info == INFO


def test_concatenation_keeps_only_shared_info():
    other = Codes(sample(3).packed, [1, 2, 3], 3, 7, {**INFO, "model": "xyz"})
    joined = Codes.concat([sample(2), other])
    assert joined.info == {"threshold": "1.0"}
    assert joined.ids.tolist() == ["n0é", "n1é", "1", "2", "3"]


def test_firing_rates_of_many_nodes_are_counted_in_pieces(monkeypatch):
    monkeypatch.setattr(bits, "COUNTED_ROWS", 4)
    codes = sample(11)
    assert np.allclose(codes.firing_rates(), codes.to_numpy().mean(0), rtol=1e-15)


def test_other_forms():
    codes = sample()
    frame = codes.to_pandas()
    assert frame["id"].tolist() == codes.ids.tolist()
    assert b"".join(frame["code"]) == codes.packed.tobytes()
    index = codes.to_faiss()
    assert (index.ntotal, index.d) == (9, 24)
    distances, _ = index.search(codes.packed, 9)
    assert np.array_equal(distances, np.sort(codes.hamming(codes), axis=1))
    assert repr(codes) == "Codes(9 nodes x 21 bits, 3 steps of 7 channels)"
    bias = np.arange(5, dtype=np.float32)
    assert np.array_equal(codes.linear(np.ones((21, 5)), bias), codes.popcount()[:, None] + bias)


def test_pandas_polars_and_duckdb_read_the_same_codes(tmp_path):
    polars, duckdb = (pytest.importorskip(name) for name in ("polars", "duckdb"))
    codes = sample(60, 70, channels=70)
    path = tmp_path / "codes.arrow"
    codes.save(path)
    frame = pd.read_feather(path)
    assert frame["id"].tolist() == codes.ids.tolist()
    assert np.array_equal([np.frombuffer(code, np.uint8) for code in frame["code"]], codes.packed)
    assert polars.read_ipc(path)["code"].to_list() == frame["code"].tolist()
    stored = pytest.importorskip("pyarrow.dataset").dataset(path, format="ipc")  # DuckDB finds it by its name
    found = duckdb.sql("""
        select b.id, bit_count(xor(a.code::bit, b.code::bit)) as distance
        from (select * from stored limit 1) a, stored b order by distance, b.id limit 4
    """).fetchall()
    assert stored.count_rows() == 60
    distances = codes.hamming(codes[0])[:, 0]
    order = sorted(range(60), key=lambda row: (distances[row], codes.ids[row]))[:4]
    assert found == [(codes.ids[row], distances[row]) for row in order]


def test_ids_are_kept_alike_in_graphs_and_codes():
    bits = [[0, 1], [1, 0]]
    assert Codes.from_bits(bits, ids=torch.tensor([7, 5])).ids.tolist() == [7, 5]
    assert list(map(str, Codes.from_bits(bits, ids=[True, False]).ids)) == ["True", "False"]
