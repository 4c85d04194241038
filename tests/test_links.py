"""Link prediction: held-out edges are nowhere in training, non-edges are none, scores are what codes allow."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from spikegcl import links
from spikegcl.bits import pack
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.errors import GraphError
from spikegcl.graph import build_graph
from spikegcl.links import FITTED_ON, hold_out, link_prediction, score_links

SMALL = Config(epochs=2, channels=8, steps=4)


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=300,classes=3,num_features=24")


def as_set(pairs):
    return {tuple(pair) for pair in pairs.tolist()}


def edges_of(graph):
    return {(u, v) for u, v in zip(*map(np.ndarray.tolist, graph.adjacency.nonzero()), strict=True) if u < v}


def test_held_out_edges_are_not_in_the_training_graph(graph):
    found = hold_out(graph, 1)
    total = graph.num_edges // 2
    test, val = as_set(found.test.edges), as_set(found.val.edges)
    assert len(test) == len(found.test.edges) == round(0.10 * total)
    assert len(val) == len(found.val.edges) == round(0.05 * total)
    remaining = edges_of(found.graph)
    assert not (test | val) & remaining
    assert not test & val
    assert test | val | remaining == edges_of(graph)
    assert as_set(found.train.edges) == remaining
    assert (found.graph.adjacency != found.graph.adjacency.T).nnz == 0
    assert found.graph.features is graph.features


def test_non_edges_are_never_edges_of_the_full_graph_and_never_twice(graph):
    found = hold_out(graph, 1)
    parts = (found.train, found.val, found.test)
    pairs = np.concatenate([part.non_edges for part in parts])
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len(as_set(pairs)) == len(pairs)
    assert not as_set(pairs) & edges_of(graph)
    assert all(len(part.edges) == len(part.non_edges) for part in parts)


def test_the_seed_decides(graph):
    one, again, other = hold_out(graph, 1), hold_out(graph, 1), hold_out(graph, 2)
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(one, part).both, getattr(again, part).both)
    assert as_set(one.test.edges) != as_set(other.test.edges)


def test_weights_stay_with_their_edges():
    weights = sp.random_array((40, 40), density=0.1, rng=np.random.default_rng(0), dtype=np.float32)
    graph = build_graph(weights + weights.T)
    kept = hold_out(graph).graph.adjacency
    assert 0 < kept.nnz < graph.num_edges
    assert np.array_equal(kept.data, np.asarray(graph.adjacency[kept.nonzero()]).ravel())


def test_large_graphs_fit_on_a_sample_of_their_edges(graph, monkeypatch):
    assert graph.num_edges < FITTED_ON
    monkeypatch.setattr(links, "FITTED_ON", 100)
    found = hold_out(graph)
    assert len(found.train.edges) == len(found.train.non_edges) == 100
    assert as_set(found.train.edges) < edges_of(found.graph)


def test_graphs_with_too_few_or_too_many_edges_are_refused():
    with pytest.raises(GraphError, match="needs 20 at least; graph has 2"):
        hold_out(build_graph([[0, 1], [1, 2]]))
    with pytest.raises(GraphError, match="too dense"):
        hold_out(build_graph(sp.csr_array(np.ones((12, 12)))))


def cliques(count=10, size=8):
    """Separate complete graphs: whoever is in the same one is linked."""
    member = np.repeat(np.arange(count), size)
    return build_graph(sp.csr_array(member[:, None] == member[None, :])), member


@pytest.mark.parametrize("width", [64, 61])
def test_codes_that_know_the_links_rank_perfectly(width):
    graph, member = cliques()
    packed = pack(np.random.default_rng(0).random((10, width))[member] < 0.5)
    scores = score_links(packed, hold_out(graph), bits=width)
    for ranking in (scores.hamming, scores.logreg):
        assert (ranking.auc, ranking.ap) == pytest.approx((1, 1))


def test_codes_that_know_nothing_rank_at_chance(graph):
    packed = pack(np.random.default_rng(0).random((graph.num_nodes, 64)) < 0.5)
    scores = score_links(packed, hold_out(graph), bits=64)
    for ranking in (scores.hamming, scores.logreg):
        assert ranking.auc == pytest.approx(0.5, abs=0.1)
        assert ranking.ap == pytest.approx(0.5, abs=0.1)


def test_the_regression_finds_the_bits_that_matter():
    # Four bits say the clique, sixty are noise: counting equal bits hides what weights can find.
    graph, member = cliques()
    rng = np.random.default_rng(0)
    matrix = rng.random((len(member), 64)) < 0.5
    matrix[:, :4] = (member[:, None] >> np.arange(4)) & 1
    scores = score_links(pack(matrix), hold_out(graph), bits=64)
    assert scores.logreg.auc > scores.hamming.auc + 0.1


def test_training_sees_the_remaining_graph_only(graph, monkeypatch):
    seen = []
    original = links.train

    def spy(training, *arguments, **options):
        seen.append(training)
        return original(training, *arguments, **options)

    monkeypatch.setattr(links, "train", spy)
    result = link_prediction(graph, SMALL, seed=3)
    assert edges_of(seen[0]) == edges_of(hold_out(graph, 3).graph)
    assert result.test_edges == len(hold_out(graph, 3).test.edges)
    assert result == link_prediction(graph, SMALL, seed=3)
    assert list(result.floors) == ["untrained", "projection"]
    for scores in (result.trained, *result.floors.values()):
        assert 0 <= scores.hamming.auc <= 1
        assert 0 <= scores.logreg.ap <= 1


def test_floors_never_see_held_out_edges_and_can_be_left_out(graph, monkeypatch):
    seen = []
    for name in ("untrained", "projection"):
        original = getattr(links.floors, name)
        monkeypatch.setattr(links.floors, name, lambda of, *rest, make=original: seen.append(of) or make(of, *rest))
    link_prediction(graph, SMALL, seed=3)
    assert [edges_of(of) == edges_of(hold_out(graph, 3).graph) for of in seen] == [True, True]
    assert link_prediction(graph, SMALL, seed=3, with_floors=False).floors == {}
    assert len(seen) == 2


def test_structural_features_come_from_the_remaining_edges(graph, monkeypatch):
    bare = build_graph(graph.adjacency)
    seen = []
    monkeypatch.setattr(links, "structural_features", lambda of: seen.append(of) or graph.with_features(np.eye(300)))
    link_prediction(bare, SMALL)
    assert edges_of(seen[0]) == edges_of(hold_out(bare).graph)


def test_selection_by_validation_accuracy_works(graph):
    assert link_prediction(graph, SMALL.replace(select="validation")).test_edges > 0
