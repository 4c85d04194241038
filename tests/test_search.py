"""Search finds what brute force finds, and says clearly what it cannot search."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

from spikegcl import search as module
from spikegcl.codes import Codes
from spikegcl.errors import CodesError, WriteError
from spikegcl.search import KINDS, Index, write_faiss


def sample(nodes=60, bits=20, seed=0, named=True):
    """Few distinct codes, so that ties are common."""
    rng = np.random.default_rng(seed)
    matrix = (rng.random((max(nodes // 3, 1), bits)) < rng.random(bits))[rng.integers(0, max(nodes // 3, 1), nodes)]
    order = rng.permutation(nodes)
    return Codes.from_bits(matrix, [f"n{n}" for n in order] if named else order, channels=4 if bits % 4 == 0 else 1)


def brute(distances, k):
    rows = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(distances, rows, 1)


@pytest.mark.parametrize("bits", [1, 7, 8, 20, 64, 130, 512])
@pytest.mark.parametrize("k", [1, 5, 60, 100])
def test_flat_search_is_brute_force_with_ties_in_row_order(bits, k):
    codes, query = sample(bits=bits), sample(9, bits, seed=1)
    found = Index.build(codes).search_rows(query, k)
    for got, expected in zip(found, brute(query.hamming(codes), k)):
        assert np.array_equal(got, expected)
    assert found[1].dtype == np.int32


def test_blocks_of_queries_and_whole_sorts_change_nothing(monkeypatch):
    codes, query = sample(bits=64), sample(25, 64, seed=1)
    expected = Index.build(codes).search_rows(query, 7)
    for budget in (1, 20_000):
        monkeypatch.setattr(module, "BUDGET", budget)
        assert all(map(np.array_equal, Index.build(codes).search_rows(query, 7), expected))


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_not_its_own_neighbour(kind):
    codes = sample()
    rows, distances = Index.build(codes, kind, lists=2).search_rows(codes.ids, 59, effort=64)
    apart = codes.hamming(codes)
    assert np.array_equal(np.sort(rows, 1), [[m for m in range(60) if m != n] for n in range(60)])
    assert np.array_equal(distances, np.take_along_axis(apart, rows, 1))
    np.fill_diagonal(apart, 999)
    assert np.array_equal(rows, brute(apart, 59)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_ids_and_distances_belong_together(kind, named):
    codes = sample(named=named)
    asked = codes.ids[[3, 8]].tolist()
    found = Index.build(codes, kind).search(asked, 6)
    assert found.ids.shape == found.distances.shape == (2, 6)
    for line, key in enumerate(asked):
        apart = codes.select([key]).hamming(codes.select(found.ids[line]))[0]
        assert np.array_equal(apart, found.distances[line])
        assert key not in found.ids[line]
    single = Index.build(codes).search(asked[0], 6)
    assert single.ids.shape == (1, 6)
    if kind == "flat":
        assert single.ids.tolist() == found.ids[:1].tolist()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_search_finds_most_neighbours(kind):
    rng = np.random.default_rng(0)
    centres = rng.random((40, 128)) < 0.5
    codes = Codes.from_bits(centres[rng.integers(0, 40, 4000)] ^ (rng.random((4000, 128)) < 0.1))
    asked = codes[:50]
    exact = Index.build(codes).search_rows(asked, 10)[1]
    found = Index.build(codes, kind).search_rows(asked, 10)[1]
    assert (found >= exact).all()
    assert (found <= exact[:, -1:]).mean() > 0.95


def test_ivf_is_the_same_after_every_build():
    codes = sample(2000, 64)
    first, second = (Index.build(codes, "ivf").search_rows(codes[:40], 20, effort=1) for _ in range(2))
    assert all(map(np.array_equal, first, second))


def test_queries_with_too_few_candidates_are_answered_exactly():
    codes = sample(400, 64)
    rows, _ = Index.build(codes, "ivf", lists=100).search_rows(codes[:20], 50, effort=1)
    assert (rows >= 0).all()
    assert all(len(set(line)) == 50 for line in rows.tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_tiny_sets_give_what_there_is(kind, nodes):
    index = Index.build(sample(nodes), kind)
    for query, expected in ((sample(3), nodes), (sample(0), nodes), (index.codes.ids, max(nodes - 1, 0))):
        found = index.search(query, 5)
        assert found.ids.shape == found.distances.shape == (len(query), expected)


def weighted(query, codes, weight):
    return (query.to_numpy()[:, None] != codes.to_numpy()[None]) @ weight


def test_rescoring_by_rate_weighs_bits_by_their_variance():
    codes, query = sample(), sample(9, seed=1)
    weight = 4 * codes.to_numpy().var(0)
    rows, distances = Index.build(codes).search_rows(query, 6, rescore="rate", factor=10)
    apart = weighted(query, codes, weight)
    assert distances.dtype == np.float32
    assert np.allclose(distances, np.sort(apart, 1)[:, :6], atol=1e-4)
    assert np.allclose(np.take_along_axis(apart, rows, 1), distances, atol=1e-4)


def test_rescoring_orders_only_the_nearest_candidates():
    codes, query = sample(), sample(9, seed=1)
    weight = np.random.default_rng(0).integers(1, 9, 20).astype(np.float32)
    rows, distances = Index.build(codes).search_rows(query, 5, rescore=weight, factor=2)
    candidates, _ = brute(query.hamming(codes), 10)
    apart = np.take_along_axis(weighted(query, codes, weight), candidates, 1)
    order = np.lexsort((candidates, apart), axis=1)[:, :5]
    assert np.array_equal(rows, np.take_along_axis(candidates, order, 1))
    assert np.array_equal(distances, np.take_along_axis(apart, order, 1))


def test_rescoring_by_a_head_compares_its_outputs():
    codes = sample()
    head = np.random.default_rng(0).integers(-3, 4, (20, 3)).astype(np.float32)
    outputs = codes.to_numpy() @ head
    apart = np.square(outputs[:, None] - outputs[None]).sum(2)
    np.fill_diagonal(apart, np.inf)
    rows, distances = Index.build(codes).search_rows(codes.ids, 5, rescore=head, factor=99)
    for got, expected in zip((rows, distances), brute(apart, 5)):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_index_finds_the_same(tmp_path, kind):
    codes = sample(500, 64)
    index = Index.build(codes, kind)
    for _ in range(2):
        index.save(tmp_path / "index")
    for verify in (True, False):
        opened = Index.open(tmp_path / "index", verify=verify)
        assert opened.kind == kind
        assert not opened.codes.packed.flags.writeable
        for a, b in zip(index.search(codes.ids[:30], 7), opened.search(codes.ids[:30], 7)):
            assert np.array_equal(a, b)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_a_saved_index_is_memory_mapped(tmp_path, kind):
    Index.build(sample(500, 64), kind).save(tmp_path / "index")
    opened = Index.open(tmp_path / "index")
    assert str(tmp_path / "index/index.faiss") in Path("/proc/self/maps").read_text()
    assert opened.structure.ntotal == 500


def test_damaged_index_folders_are_refused(tmp_path):
    folder = tmp_path / "index"
    codes = sample(200)

    def damaged(message, **options):
        with pytest.raises(CodesError, match=message):
            Index.open(folder, **options)
        Index.build(codes, "hnsw").save(folder)

    damaged("no index.json")
    raw = (folder / "index.faiss").read_bytes()
    (folder / "index.faiss").write_bytes(raw[:100] + bytes([raw[100] ^ 4]) + raw[101:])
    damaged("checksum")
    (folder / "index.faiss").write_bytes(raw[:50])
    damaged("faiss cannot read", verify=False)
    (folder / "index.faiss").unlink()
    damaged("is missing")
    sample(200, seed=2).save(folder / "codes.arrow")
    damaged("not the file that was indexed")
    sample(100).save(folder / "codes.arrow")
    damaged("differ in size", verify=False)
    (folder / "index.json").write_text("{}")
    damaged("does not describe an index")
    about = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**about, "version": 2}))
    damaged("version 2, this release reads 1; upgrade")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/mine.txt").write_text("mine")
    with pytest.raises(CodesError, match="is not an index folder"):
        Index.build(codes).save(tmp_path / "thesis")


@pytest.mark.parametrize("name", ["file/index", "file/deep/index"])
def test_an_index_below_a_file_cannot_be_written(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=f"cannot write {tmp_path / name}"):
        Index.build(sample()).save(tmp_path / name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda codes: Index.build(codes, "tree"), "no index kind 'tree'"),
        (lambda codes: Index.build(codes, "ivf", lists=99), "99 lists for 60 codes"),
        (lambda codes: Index.build(codes).search(sample(bits=24)), "query of 24 bits cannot search codes of 20 bits"),
        (lambda codes: Index.build(codes).search(["n1", "n99"]), "no code has the id 'n99'"),
        (lambda codes: Index.build(codes).search("n1", 0), "k and factor must be at least 1"),
        (lambda codes: Index.build(codes).search("n1", factor=0), "k and factor must be at least 1"),
        (lambda codes: Index.build(codes).search("n1", rescore="best"), "no rescoring 'best'"),
        (lambda codes: Index.build(codes).search("n1", rescore=np.ones(7)), r"codes of 20 bits need weights .*\(7,\)"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, message):
    with pytest.raises(CodesError, match=message):
        call(sample())


@pytest.fixture
def search(run):
    """Run `spikegcl search` in a fresh folder with some code files; returns exit code, stdout and stderr."""
    sample().save("names.arrow")
    sample(named=False).save("numbers.arrow")
    sample(bits=24).save("wide.arrow")
    return lambda *arguments: run("search", *arguments)


@pytest.mark.parametrize("file", ["names", "numbers"])
def test_command_finds_by_id(search, file):
    codes = sample(named=file == "names")
    asked = codes.ids[[4, 9]].tolist()
    code, out, err = search(f"{file}.arrow", "--id", asked[0], "--id", asked[1], "-k", 3, "--json")
    document = json.loads(out)
    expected = Index.build(codes).search(asked, 3)
    assert (code, err) == (0, "")
    assert {key: document[key] for key in ("bits", "nodes", "k", "index", "rescore")} == {
        **{"bits": 20, "nodes": 60, "k": 3, "index": "flat", "rescore": "none"},
    }
    assert [result["query"] for result in document["results"]] == asked
    assert [[n["id"] for n in result["neighbours"]] for result in document["results"]] == expected.ids.tolist()
    assert [[n["distance"] for n in r["neighbours"]] for r in document["results"]] == expected.distances.tolist()


def test_command_finds_by_codes_with_every_index(search):
    sample(5, seed=3).save("query.arrow")
    for kind in KINDS:
        code, out, _ = search("names.arrow", "--query", "query.arrow", "--index", kind, "--rescore", "rate", "--json")
        document = json.loads(out)
        assert code == 0
        assert document["index"] == kind
        assert [len(result["neighbours"]) for result in document["results"]] == [10] * 5


def test_command_opens_a_saved_index(search):
    Index.build(sample(), "hnsw").save("index")
    assert json.loads(search("index", "--id", "n3", "--json")[1])["index"] == "hnsw"
    assert json.loads(search("index", "--id", "n3", "--index", "flat", "--json")[1])["index"] == "flat"


def test_command_prints_a_table_for_people(search):
    Codes.from_bits(np.eye(3), ["[bold]a", "b", "c"]).save("odd.arrow")
    code, out, _ = search("odd.arrow", "--id", "b", "-k", 2)
    assert code == 0
    assert "[bold]a" in out
    assert "distances are differing bits of 3" in out


def test_command_warns_of_another_model(search, caplog):
    plain = sample(5, seed=3)
    Codes(plain.packed, plain.ids, plain.steps, plain.channels, {"model": "other"}).save("other.arrow")
    assert search("names.arrow", "--query", "other.arrow", "--json")[0] == 0
    assert "another model" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["names.arrow"], 2, "either --id or --query"),
        (["names.arrow", "--id", "n1", "--query", "wide.arrow"], 2, "either --id or --query"),
        (["names.arrow", "--id", "n1", "--index", "tree"], 2, "tree"),
        (["names.arrow", "--id", "n1", "--rescore", "best"], 2, "best"),
        (["names.arrow", "--id", "n1", "-k", "0"], 2, "-k"),
        (["names.arrow", "--id", "nobody"], 1, "no code has the id 'nobody'"),
        (["numbers.arrow", "--id", "x"], 1, "no code has the id 'x'"),
        (["numbers.arrow", "--id", "99"], 1, "no code has the id 99"),
        (["names.arrow", "--query", "wide.arrow"], 1, "24 bits cannot search codes of 20 bits"),
        (["nothing.arrow", "--id", "n1"], 1, "there is no code file nothing.arrow"),
        ([".", "--id", "n1"], 1, "not a complete run folder"),
    ],
)
def test_command_says_what_is_wrong(search, arguments, expected, message):
    code, out, err = search(*arguments)
    assert (code, out) == (expected, "")
    assert message in err
    assert "Traceback" not in err


def test_command_finds_damage(search, tmp_path):
    raw = bytearray((tmp_path / "names.arrow").read_bytes())
    raw[raw.index(sample().packed.tobytes())] ^= 1
    (tmp_path / "names.arrow").write_bytes(raw)
    code, _, err = search("names.arrow", "--id", "n1")
    assert code == 1
    assert "checksum" in err


def test_an_index_is_not_cut_off_by_a_full_disk(tmp_path):
    index = Index.build(sample(), kind="hnsw")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(WriteError, match="cannot write"):
            write_faiss(tmp_path / "index.faiss", index.structure)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("links", [1, 0, -1])
def test_too_few_links_are_an_error_before_faiss_sees_them(links):
    with pytest.raises(CodesError, match="at least 2"):
        Index.build(Codes.from_bits(np.eye(8, dtype=int)), "hnsw", links=links)


@pytest.mark.parametrize("effort", [0, -3, 2**31])
def test_an_effort_out_of_range_is_an_error(effort):
    index = Index.build(Codes.from_bits(np.eye(8, dtype=int)), "ivf", lists=2)
    with pytest.raises(CodesError, match="effort"):
        index.search([0], k=1, effort=effort)


def test_an_empty_index_file_is_named(tmp_path):
    Index.build(Codes.from_bits(np.eye(8, dtype=int)), "ivf", lists=2).save(tmp_path / "index")
    (tmp_path / "index/index.faiss").write_bytes(b"")
    with pytest.raises(CodesError, match="missing or empty"):
        Index.open(tmp_path / "index")
