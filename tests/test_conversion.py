"""The paper's theorem: rates of converted networks, the bound where its assumptions hold, and where they do not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl import build_graph, convert, load_dataset
from spikegcl.conversion import normalised_adjacency
from spikegcl.errors import ConfigError
from spikegcl.experiments.conversions import DEPTHS, KAPPA, KINDS, STEPS, random_conversion, train_network
from strategies import graphs


@pytest.fixture(scope="module")
def graph():
    return load_dataset("sbm:nodes=200,classes=4")


@settings(max_examples=200, deadline=None)
@given(
    graphs(min_nodes=2), st.sampled_from(list(KINDS)), st.sampled_from(STEPS[:4]), st.sampled_from(DEPTHS),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_error_is_within_the_bound_whenever_the_assumptions_hold(graph, kind, steps, layers, seed):
    done = random_conversion(graph, kind, steps, layers, np.random.default_rng(seed))
    assert done.fails(KAPPA) or done.error <= done.bound(KAPPA)


@given(graphs(min_nodes=2), st.integers(1, 2), st.sampled_from(STEPS[:3]), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_what_the_proof_adds_up_is_never_exceeded(graph, layers, steps, seed):
    """|rates - target| at a node <= sqrt(m) max|membrane| / T (1 + r + ... + r^(L-1)), whatever the inputs."""
    rng = np.random.default_rng(seed)
    width = 3
    sizes = [width * steps, *[width] * layers]
    weights = [rng.standard_normal(shape) for shape in pairwise(sizes)]
    done = convert(graph.with_features(rng.standard_normal((graph.num_nodes, sizes[0]))), weights, steps)
    series = sum(done.ratio**layer for layer in range(layers))
    assert done.error <= np.sqrt(width) * max(-done.low, done.high) / steps * series * (1 + 1e-9)


def test_each_assumption_matters(graph):
    """For each there is a case in which it alone fails and the error is beyond the bound."""
    rng = np.random.default_rng(0)
    beyond = set()
    for kind, steps in (("late", 256), ("strong", 64), ("weak", 64)):
        for _ in range(40):
            done = random_conversion(graph, kind, steps, 2, rng)
            if done.error > done.bound(KAPPA):
                beyond.add(tuple(done.fails(KAPPA)))
    assert {("membrane",), ("inputs",), ("series",)} <= beyond


def test_a_steady_input_is_counted_exactly():
    """Every step brings 0.4 thresholds: after 5 steps 2 spikes were fired, and nothing is left over."""
    graph = build_graph(np.zeros((2, 0), int), np.ones((1, 5)))
    done = convert(graph, [np.full((5, 1), 0.08)], steps=5)
    assert done.target == pytest.approx(0.4)
    assert done.rates == pytest.approx(0.4)
    assert (done.low, done.high) == pytest.approx((0, 0.8))


def test_rates_do_not_depend_on_the_threshold(graph):
    rng = np.random.default_rng(1)
    weights = [rng.random((graph.num_features, 4)) / 64, rng.random((4, 4)) / 8]
    low, high = (convert(graph, weights, 8, threshold=threshold).rates for threshold in (0.25, 1.0))
    np.testing.assert_array_equal(low, high)


def test_the_target_is_the_network(graph):
    rng = np.random.default_rng(2)
    first, second = rng.standard_normal((graph.num_features, 4)), rng.standard_normal((4, 3))
    adjacency = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    scale = 1 / np.sqrt(adjacency.sum(1))
    operator = scale[:, None] * adjacency * scale
    np.testing.assert_allclose(normalised_adjacency(graph)[0].toarray(), operator)
    features = graph.features.toarray() if graph.is_sparse else graph.features
    expected = np.maximum(operator @ np.maximum(operator @ features @ first, 0) @ second, 0)
    np.testing.assert_allclose(convert(graph, [first, second], 8).target, expected, atol=1e-9)


def test_a_trained_network_has_activations_up_to_one_and_learns(graph):
    from spikegcl.datasets import make_split

    split = make_split(graph, 0)
    weights, readout = train_network(graph, split, width=8, layers=2, epochs=30, seed=0)
    done = convert(graph, weights, 16)
    assert done.target.max() == pytest.approx(1, abs=1e-4)
    hits = (done.target @ readout).argmax(1) == graph.labels
    assert hits[split.train].mean() > 0.5


def test_weights_that_do_not_follow_each_other_are_refused(graph):
    with pytest.raises(ConfigError, match="follow each other"):
        convert(graph, [np.ones((3, 4))], 2)
