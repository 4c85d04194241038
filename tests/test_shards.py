"""Codes in several files are searched like one, and a manifest joins only what belongs together."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.codes import Codes, open_codes
from spikegcl.errors import CodesError
from spikegcl.search import KINDS, Index
from spikegcl.shards import ShardedIndex, Shards, open_shards, write_manifest


def sample(nodes=60, bits=20, seed=0, *, named=True, model="m"):
    """Few distinct codes, so that ties are common, also across shards."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 2, (4, bits))[rng.integers(0, 4, nodes)] ^ (rng.random((nodes, bits)) < 0.1)
    order = rng.permutation(nodes)
    plain = Codes.from_bits(matrix, [f"n{n}" for n in order] if named else order)
    return Codes(plain.packed, plain.id_column, plain.steps, plain.channels, {"model": model})


def cut(codes, *borders):
    edges = [0, *sorted(borders), len(codes)]
    return Shards(tuple(codes[a:b] for a, b in pairwise(edges)))


def same(found, expected):
    return all(map(np.array_equal, found, expected))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 60), max_size=4), st.integers(1, 70), st.booleans(), st.sampled_from([7, 20, 64]))
def test_any_cut_finds_what_one_index_finds(borders, k, named, bits):
    codes, query = sample(bits=bits, named=named), sample(9, bits, seed=1)
    whole, parts = Index.build(codes), ShardedIndex.build(cut(codes, *borders))
    assert same(parts.search_rows(query, k), whole.search_rows(query, k))
    asked = codes.ids[[3, 40, 3]].tolist()
    for rescore in (None, "rate", np.arange(2.0 * bits).reshape(bits, 2) % 5):
        assert same(parts.search(asked, k, rescore=rescore), whole.search(asked, k, rescore=rescore))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 60), max_size=4), st.lists(st.integers(0, 59), max_size=9), st.booleans())
def test_rows_run_on_from_shard_to_shard(borders, rows, named):
    codes = sample(named=named)
    shards = cut(codes, *borders)
    for got, expected in ((shards[rows], codes[rows]), (shards[5:31:2], codes[5:31:2])):
        assert np.array_equal(got.packed, expected.packed)
        assert got.ids.tolist() == expected.ids.tolist()
    assert np.array_equal(shards.rows(codes.ids[rows]), rows)
    assert np.array_equal(shards.firing_rates(), codes.firing_rates())
    assert shards.info == codes.info


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_shards_find_existing_codes_in_order(kind):
    codes = sample(400, 64)
    index = ShardedIndex.build(cut(codes, 100, 200), kind)
    rows, distances = index.search_rows(codes[:20], 15)
    assert index.kind == kind
    assert np.array_equal(distances, np.take_along_axis(codes[:20].hamming(codes), rows, 1))
    assert (np.diff(distances, axis=1) >= 0).all()


def save(shards, folder):
    files = [folder / f"codes-{number}.arrow" for number in range(len(shards.parts))]
    for part, file in zip(shards.parts, files, strict=True):
        part.save(file)
    return files


def test_a_manifest_joins_files_and_can_be_moved(tmp_path):
    codes = sample()
    (tmp_path / "a").mkdir()
    write_manifest(tmp_path / "a/codes.json", save(cut(codes, 20, 20, 45), tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    for verify in (True, False):
        shards = open_shards(tmp_path / "b/codes.json", verify=verify)
        assert [len(part) for part in shards.parts] == [20, 0, 25, 15]
        assert not any(part.packed.flags.writeable for part in shards.parts if len(part))
        assert np.array_equal(shards[:].packed, codes.packed)


def test_what_a_manifest_does_not_describe_is_refused(tmp_path):
    codes, manifest = sample(), tmp_path / "codes.json"
    files = save(cut(codes, 30), tmp_path)

    def refused(message, **options):
        with pytest.raises(CodesError, match=message):
            open_shards(manifest, **options)
        save(cut(codes, 30), tmp_path)
        write_manifest(manifest, files)

    refused("cannot read the manifest")
    sample(30, seed=5).save(files[1])
    refused("not the file that .* joined")
    sample(29, seed=5).save(files[1])
    refused("not the file that .* joined", verify=False)
    files[0].unlink()
    refused("there is no code file")
    manifest.write_text('{"format": "else", "shards": []}')
    refused("not a manifest of code shards")
    manifest.write_text("[]")
    refused("not a manifest of code shards")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 2}))
    refused("version 2, this release reads 1; upgrade")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "there are no shards"),
        ([sample(), sample(bits=24)], "shard 1 has codes of 1 x 24 bits"),
        ([sample(), sample(), sample(model="other")], "shard 2 comes from another model"),
        ([sample(), sample(named=False)], "numbers as ids and the other strings"),
        ([sample(), sample()], "occurs more than once in the shards"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, parts, message):
    files = [tmp_path / f"{number}.arrow" for number in range(len(parts))]
    for part, file in zip(parts, files, strict=True):
        part.save(file)
    with pytest.raises(CodesError, match=message):
        write_manifest(tmp_path / "codes.json", files)
    assert not (tmp_path / "codes.json").exists()


def test_the_command_searches_files_and_manifests_like_one_file(run, tmp_path):
    codes = sample()
    codes.save(tmp_path / "all.arrow")
    write_manifest(tmp_path / "codes.json", save(cut(codes, 20, 50), tmp_path))
    Index.build(open_codes(tmp_path / "codes-1.arrow")).save(tmp_path / "index")
    one, files, mixed = (
        ["all.arrow"],
        ["codes-0.arrow", "codes-1.arrow", "codes-2.arrow"],
        ["codes-0.arrow", "index", "codes-2.arrow"],
    )
    for query in (["--id", "n3", "--id", "n50"], ["--query", "all.arrow"], ["--query", "codes.json"]):
        answers = []
        for asked in (one, files, mixed, ["codes.json"]):
            code, out, err = run("search", *asked, *query, "-k", 4, "--json")
            assert (code, err) == (0, "")
            answers.append(json.loads(out)["results"])
        assert answers[1:] == answers[:1] * 3
    for kind in KINDS:
        assert json.loads(run("search", "codes.json", "--id", "n3", "--index", kind, "--json")[1])["index"] == kind
    code, _, err = run("search", "all.arrow", "codes-0.arrow", "--id", "n3")
    assert code == 1
    assert "more than once in the shards" in err
