"""Prepared graphs: the folder opens to the same graph, and nothing that is damaged opens at all."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings

from commands import FAST, options
from spikegcl.codes import open_codes
from spikegcl.commands.common import load
from spikegcl.config import Config
from spikegcl.errors import FeatureError, GraphError, ReadError
from spikegcl.graph import Graph, Split, build_graph
from spikegcl.prepared import new_prepared, open_prepared, save_prepared
from spikegcl.readers import read_graph
from spikegcl.training import train
from strategies import graphs


def content_hash_of(graph: Graph) -> str:
    """The hash by its formula, not the one the manifest brought."""
    fields = {name: getattr(graph, name) for name in Graph.__dataclass_fields__}
    return Graph(**fields).hash


def assert_same(left: Graph, right: Graph) -> None:
    assert content_hash_of(left) == right.hash == left.hash
    assert left.is_sparse == right.is_sparse
    assert left.ids.dtype == right.ids.dtype
    for name in ("name", "columns", "classes"):
        assert getattr(left, name) == getattr(right, name)
    assert (left.labels is None) == (right.labels is None)
    assert left.labels is None or np.array_equal(left.labels, right.labels)
    assert (left.split and left.split.hash) == (right.split and right.split.hash)


@given(graphs(weighted=True))
@settings(max_examples=20, deadline=None)
def test_saved_and_opened_is_the_same_graph(tmp_path_factory, graph):
    folder = tmp_path_factory.mktemp("prepared") / "g"
    save_prepared(graph, folder)
    assert_same(open_prepared(folder, verify=True), graph)


def test_everything_a_graph_may_have(tmp_path):
    graph = build_graph(
        [[0, 1], [1, 2]],
        ids=["é", "b", "c d"],
        labels=["x", "", "y"],
        split=Split([0], [], [2]),
        name="small",
    )
    save_prepared(graph, tmp_path / "g")
    assert_same(open_prepared(tmp_path / "g"), graph)


@pytest.fixture
def prepared(files, tmp_path):
    save_prepared(files[0], tmp_path / "g")
    return tmp_path / "g"


def test_arrays_are_mapped_and_read_only(prepared):
    graph = open_prepared(prepared)
    for array in (graph.indptr, graph.indices, graph.features.data, graph.features.indices, graph.labels):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_training_gives_the_codes_of_the_graph_in_memory(files, prepared):
    config = Config(epochs=2, channels=8, steps=4)
    expected = train(files[0], config, seed=3).codes
    assert np.array_equal(train(open_prepared(prepared), config, seed=3).codes, expected)


def test_commands_take_the_folder_in_place_of_files(run, files, prepared):
    assert run("train", *options(files[1]), *FAST, "-o", "from-files")[0] == 0
    assert run("train", prepared, *FAST, "-o", "from-folder")[0] == 0
    expected = open_codes("from-files/codes.arrow")
    assert np.array_equal(open_codes("from-folder/codes.arrow").packed, expected.packed)
    code, out, _ = run("embed", "from-folder", prepared, "-o", "again.arrow", "--json")
    assert code == 0
    assert json.loads(out)["graph_changed"] is False
    assert np.array_equal(open_codes("again.arrow").packed, expected.packed)
    for command in (["probe", "from-folder"], ["energy", "from-folder"], ["estimate", prepared, *FAST]):
        assert run(*command, "--json")[0] == 0


def test_other_labels_and_split_beside_a_folder(files, prepared):
    graph = read_graph(prepared, labels=files[1]["labels"])
    assert np.array_equal(graph.labels, files[0].labels)
    with pytest.raises(FeatureError, match="prepared with its features; leave"):
        read_graph(prepared, features=files[1]["features"])


def test_a_folder_may_be_called_as_a_dataset(files, tmp_path, monkeypatch, prepared):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").symlink_to(prepared)
    graph, source = load("digits", None, None, None, None)
    assert graph.num_nodes == open_prepared(prepared).num_nodes
    assert source.name is None


def test_a_folder_that_is_no_prepared_graph(tmp_path):
    with pytest.raises(ReadError, match="is a folder, and not a prepared graph"):
        read_graph(tmp_path)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("indices.npy", truncate, r"indices\.npy has \d+ bytes instead of \d+"),
        ("labels.npy", os.unlink, r"labels\.npy"),
        ("manifest.json", truncate, "Expecting"),
        ("manifest.json", lambda path: path.write_text("{}"), "format"),
        ("manifest.json", lambda path: path.write_text('{"format": "spikegcl graph", "version": 9}'), "version 9"),
    ],
)
def test_damage_is_found_on_opening(prepared, name, damage, message):
    damage(prepared / name)
    with pytest.raises(ReadError, match=message):
        open_prepared(prepared)


def test_flipped_bits_are_found_on_request(prepared):
    with (prepared / "features.data.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    open_prepared(prepared)
    with pytest.raises(ReadError, match=r"features\.data\.npy does not match its checksum"):
        open_prepared(prepared, verify=True)


def test_an_unfinished_folder_never_appears_and_is_cleared_by_the_next(tmp_path, files):
    with pytest.raises(RuntimeError), new_prepared(tmp_path / "g"):
        raise RuntimeError
    assert not any(tmp_path.iterdir())
    left = tmp_path / ".g.partial"
    left.mkdir()
    (left / "junk.npy").touch()
    save_prepared(files[0], tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    assert not (tmp_path / "g" / "junk.npy").exists()


def test_what_is_there_is_not_replaced_unasked(tmp_path, files, prepared):
    with pytest.raises(GraphError, match="exists already; choose another name or add --force"):
        save_prepared(files[0], prepared)
    save_prepared(files[0], prepared, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(GraphError, match="choose another name, it is not a prepared graph"):
        save_prepared(files[0], tmp_path / "other", force=True)


def test_two_preparations_do_not_share_a_folder(tmp_path):
    with (
        new_prepared(tmp_path / "g") as folder,
        pytest.raises(GraphError, match="another process is writing"),
        new_prepared(tmp_path / "g"),
    ):
        (folder / "never").touch()
