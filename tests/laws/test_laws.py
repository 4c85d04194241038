"""Identities that hold for every graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from spikegcl.groups import GROUPINGS, make_groups
from spikegcl.training import embed_graph, train
from strategies import graphs

SMALL = Config(steps=3, channels=8, epochs=2, threshold=0.05)


def relabelled(graph, order):
    """The same graph with its nodes in another order."""
    return graph.subgraph(order)


@settings(max_examples=30, deadline=None)
@given(graph=graphs(min_features=3), seed=st.integers(0, 3), grouping=st.sampled_from(GROUPINGS), data=st.data())
def test_groups_partition_the_columns(graph, seed, grouping, data):
    steps = data.draw(st.integers(1, graph.num_features))
    groups = make_groups(graph, steps, grouping, seed)
    copies = steps if grouping == "all" else 1
    assert sorted(groups.order.tolist()) == [column for column in range(graph.num_features) for _ in range(copies)]
    assert groups.steps == steps
    assert (groups.sizes > 0).all()
    if grouping != "cluster":
        assert groups.sizes.max() - groups.sizes.min() <= 1


@settings(max_examples=10, deadline=None)
@given(graph=graphs(min_nodes=4, min_features=3), seed=st.integers(0, 3))
def test_embedding_twice_gives_the_same_bits(graph, seed):
    trained = train(graph, SMALL, seed=seed)
    assert np.array_equal(embed_graph(trained.model, graph), trained.codes)
    assert np.array_equal(embed_graph(trained.model, graph), trained.codes)


@settings(max_examples=8, deadline=None)
@given(graph=graphs(min_nodes=4, min_features=3), other=graphs(min_nodes=4, min_features=3))
def test_training_on_another_graph_first_changes_nothing(graph, other):
    alone = train(graph, SMALL, seed=1).codes
    train(other, SMALL, seed=2)
    assert np.array_equal(train(graph, SMALL, seed=1).codes, alone)


@settings(max_examples=8, deadline=None)
@given(graph=graphs(min_nodes=4, min_features=3), seed=st.integers(0, 100))
def test_relabelling_the_nodes_permutes_the_codes(graph, seed):
    """The same model on a graph whose nodes are listed in another order gives the same code for every id."""
    model = train(graph, SMALL, seed=1).model
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    moved = relabelled(graph, order)
    assert np.array_equal(moved.ids, graph.ids[order])
    assert np.array_equal(embed_graph(model, moved), embed_graph(model, graph)[order])


@settings(max_examples=8, deadline=None)
@given(graph=graphs(min_nodes=4, min_features=3))
def test_sparse_and_dense_features_give_the_same_codes(graph):
    import scipy.sparse as sp

    dense = graph.features.toarray() if graph.is_sparse else graph.features
    codes = [train(graph.with_features(form(dense)), SMALL, seed=1).codes for form in (np.array, sp.csr_array)]
    assert np.array_equal(*codes)


@settings(max_examples=20, deadline=None)
@given(graph=graphs(weighted=True), seed=st.integers(0, 100))
def test_an_edge_list_shuffled_reversed_or_repeated_is_the_same_graph(graph, seed):
    rng = np.random.default_rng(seed)
    coo = graph.adjacency.tocoo()
    edges, weights = np.stack([coo.row, coo.col]).astype(np.int64), coo.data
    order = rng.permutation(np.repeat(np.arange(edges.shape[1]), rng.integers(1, 4, edges.shape[1])))
    again = build_graph(edges[::-1][:, order], graph.features, num_nodes=graph.num_nodes, weights=weights[order])
    assert again.hash == graph.hash


def test_a_component_that_touches_nobody_flips_no_bit():
    graph = load_dataset("sbm:nodes=300,classes=3,num_features=24")
    model = train(graph, SMALL, seed=1).model
    extra = load_dataset("sbm:nodes=120,classes=3,num_features=24,seed=9")
    joined = build_graph(
        np.concatenate([np.stack(graph.adjacency.nonzero()), np.stack(extra.adjacency.nonzero()) + 300], 1),
        np.concatenate([_dense(graph), _dense(extra)]),
    )
    assert np.array_equal(embed_graph(model, joined)[:300], embed_graph(model, graph))


def _dense(graph):
    return graph.features.toarray() if graph.is_sparse else graph.features


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_number_of_steps_computed_side_by_side_does_not_matter(monkeypatch, block):
    """Chunks of steps are a matter of speed: scores and codes of a model are the same for any size."""
    from spikegcl import model as module

    graph = load_dataset("sbm:nodes=200,classes=3,num_features=24")
    config = SMALL.replace(steps=6, block=block, batch_norm=False)
    codes = []
    for floats in (1, 10**9):
        monkeypatch.setattr(module, "CHUNK_FLOATS", floats)
        codes.append(train(graph, config, seed=1).codes)
    assert (codes[0] != codes[1]).mean() < 0.01
