"""Graphs in parts: balanced cuts, the halo, and codes that do not depend on the cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import options
from spikegcl.codes import open_codes
from spikegcl.config import Config, preset
from spikegcl.datasets import load_dataset
from spikegcl.errors import ConfigError
from spikegcl.objectives import Margin
from spikegcl.parts import embed_parts, metis, partition, stream, take_part
from spikegcl.propagate import make_operator, plain_torch
from spikegcl.session import Session
from spikegcl.training import embed_graph
from strategies import graphs

COMPACT = preset("compact", "")


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=300,classes=4,num_features=24")


# ------------------------------------------------------------------------------------------------------- cuts


@pytest.mark.parametrize("cut", [metis, stream])
def test_parts_are_balanced_and_follow_the_communities(cut):
    graph = load_dataset("sbm:nodes=1000,classes=4,homophily=0.9,num_features=16")
    member = cut(graph, 4)
    assert np.bincount(member, minlength=4).max() <= 1.06 * 250
    rows = np.repeat(np.arange(1000), graph.degrees)
    inside = (member[rows] == member[graph.indices]).mean()
    assert inside > 0.5  # a random cut keeps a quarter of the edges


@given(graph=graphs(min_nodes=3), count=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_no_part_is_empty(graph, count):
    assert set(partition(graph, count)) == set(range(count))


def test_more_parts_than_nodes_is_an_error(graph):
    with pytest.raises(ConfigError, match="301 parts"):
        partition(graph, 301)


@given(graph=graphs(weighted=True), hops=st.integers(0, 3), data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_halo_is_all_nodes_within_reach_and_its_rows_are_the_whole_graphs(graph, hops, data):
    count = graph.num_nodes
    own = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))))
    part = take_part(graph, own, hops)
    near = np.isin(np.arange(count), own).astype(float)
    for _ in range(hops):
        near = near + graph.adjacency @ near
    assert np.array_equal(np.sort(part.nodes), np.flatnonzero(near))
    assert np.array_equal(part.nodes[: part.own], own)
    for kind in ("gcn", "mean", "sum", "symmetric"):
        cut, whole = part.load(kind)[0].drop_edges(0.3, 7), make_operator(graph, kind).drop_edges(0.3, 7)
        for row, node in enumerate(part.nodes[: part.inner] if hops else ()):
            mine, theirs = slice(*cut.indptr[row : row + 2]), slice(*whole.indptr[node : node + 2])
            assert np.array_equal(part.nodes[cut.indices[mine].numpy()], whole.indices[theirs])
            assert np.array_equal(cut.values[mine], whole.values[theirs])
            assert np.array_equal(cut.values_t[mine], whole.values_t[theirs])


# ------------------------------------------------------------------------------------------------------ codes


@given(graph=graphs(min_nodes=3, min_features=2), encoder=st.sampled_from(["gcn", "sage", "gat"]), data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_cut_gives_the_same_codes(graph, encoder, data):
    config = Config(steps=2, channels=5, layers=data.draw(st.integers(1, 3)), encoder=encoder, threshold=0.05)
    session = Session(graph, config, 0)
    session.warm_up(1)
    cut = data.draw(st.lists(st.integers(0, 2), min_size=graph.num_nodes, max_size=graph.num_nodes))
    member = np.unique(cut, return_inverse=True)[1].astype(np.int32)
    assert np.array_equal(embed_parts(session.model, graph, member), embed_graph(session.model, graph))


@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize("config", [Config(epochs=0), COMPACT.replace(bits=64)], ids=["default", "compact"])
def test_codes_by_parts_are_codes_in_one_piece(graph, config, parts):
    model = Session(graph, config, 0).model
    assert np.array_equal(embed_graph(model, graph, parts=parts), embed_graph(model, graph))


def test_codes_by_parts_without_the_kernels(graph):
    model = Session(graph, Config(epochs=0), 0).model
    with plain_torch():
        assert np.array_equal(embed_graph(model, graph, parts=3), embed_graph(model, graph))


@pytest.mark.parametrize("name, settings", [("cora", "paper"), ("cora", "compact"), ("photo", "paper")])
def test_codes_of_benchmarks_by_parts(name, settings, data_root):
    graph = load_dataset(name, data_root)
    model = Session(graph, preset(settings, name), 0).model
    whole = embed_graph(model, graph)
    for parts in (2, 3):
        assert np.array_equal(embed_graph(model, graph, parts=parts), whole)


# --------------------------------------------------------------------------------------------------- training


def one_epoch(graph, config, member):
    """Loss, gradients and running statistics of an epoch over the parts of ``member``."""
    session = Session(graph, config.replace(parts=int(member.max()) + 1), 0)
    session.member = member
    loss, norms = Margin(session).gradient(1)
    gradients = {name: value.grad for name, value in session.model.named_parameters() if value.grad is not None}
    return loss, norms, gradients, dict(session.model.named_buffers())


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= tolerance * value.norm(), name


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("columns", [24, 64], ids=["dense", "sparse"])
def test_parts_add_up_to_the_whole_graphs_loss_and_gradient(encoder, columns):
    """But for batch norm nothing differs: dropout, dropped edges and shuffled columns are the same in any cut."""
    graph = load_dataset(f"sbm:nodes=300,classes=4,num_features={columns}")
    config = Config(steps=4, channels=16, encoder=encoder, threshold=0.05, margin=1.0, batch_norm=False)
    loss, norms, gradients, _ = one_epoch(graph, config, partition(graph, 3))
    whole_loss, whole_norms, whole_gradients, _ = one_epoch(graph, config, np.zeros(300, np.int32))
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert norms.tolist() == pytest.approx(whole_norms.tolist(), rel=1e-4)
    assert_close(gradients, whole_gradients, 1e-5)


def test_parts_move_the_running_statistics_as_the_whole_graph_does(graph):
    """With two layers: what the only hidden layer holds does not depend on the cut."""
    config = Config(steps=4, channels=16, threshold=0.05)
    by_parts, whole = (one_epoch(graph, config, member)[3] for member in (partition(graph, 3), np.zeros(300, np.int32)))
    assert_close(by_parts, whole, 1e-5)


def test_training_by_parts_learns_and_writes_the_same_run_folder(run, files):
    settings = ("--set", "epochs=8", "--set", "channels=8", "--set", "steps=4", "--set", "margin=1.0")
    code, out, _ = run("train", *options(files[1]), *settings, "--parts", 3, "-o", "r", "--json", "--no-report")
    assert code == 0
    assert json.loads(out)["rows"][0]["epochs"] == 8
    losses = [json.loads(line)["loss"] for line in Path("r/log.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
    code, out, _ = run("embed", "r", *options(files[1], labels=None), "-o", "whole.arrow", "--json")
    assert json.loads(out)["change"]["bits_flipped"] == 0


def test_embed_command_by_parts(run, files, trained_run):
    code, out, _ = run("embed", trained_run, *options(files[1], labels=None), "--parts", 3, "-o", "c.arrow", "--json")
    assert code == 0
    assert json.loads(out)["change"]["bits_flipped"] == 0
    assert np.array_equal(open_codes("c.arrow").packed, open_codes(trained_run / "codes.arrow").packed)
