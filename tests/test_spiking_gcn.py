"""SpikingGCN: unbiased Bernoulli inputs, the rates they come from, the classifier against plain steps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import dense_features, dense_operator
from spikegcl.baselines import find_method
from spikegcl.baselines.spiking_gcn import (
    Bernoulli,
    SpikingGCN,
    SpikingGCNSettings,
    fit,
    mean_squared_error,
    to_unit_interval,
)
from spikegcl.datasets import load_dataset, make_split
from spikegcl.errors import FeatureError
from spikegcl.neurons import Neuron, run

METHOD = find_method("spiking-gcn")
RATES = np.array([[0.0, 0.003, 0.3, 0.5], [0.9, 0.999, 1.0, 2.7], [0.0, 0.0, 0.0, 0.0]], np.float32)


def draw(inputs, steps, key=0):
    """Spikes T x n x d as a dense array, and their number at each step."""
    drawn, counts = inputs.draw(steps, key)
    shape = steps, *inputs.rates.shape
    return (drawn @ torch.eye(shape[2])).view(shape).numpy(), counts


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_inputs_fire_with_their_probabilities(form):
    """Within five standard errors of the mean; probabilities of 1 and more fire always, those of 0 never."""
    steps, clipped = 20_000, RATES.clip(max=1)
    spikes, counts = draw(Bernoulli(form(RATES)), steps)
    assert set(np.unique(spikes)) == {0.0, 1.0}
    error = np.sqrt(clipped * (1 - clipped) / steps)
    assert (np.abs(spikes.mean(0) - clipped) <= 5 * error).all()
    assert counts == spikes.sum((1, 2)).tolist()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_inputs_fire_independently(form):
    """Neighbouring inputs and neighbouring steps are uncorrelated, within five standard errors."""
    spikes, _ = draw(Bernoulli(form(np.full((1, 2), 0.4, np.float32))), 20_000)
    first, second = spikes[:, 0].T
    for left, right in ((first, second), (first[1:], first[:-1]), (first[1:], second[:-1])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(20_000)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), sparse=st.booleans(), steps=st.integers(1, 5))
def test_pass_is_that_of_plain_steps(seed, sparse, steps):
    """Rates and the gradient of the weights, for the same draw of the inputs."""
    rng = np.random.default_rng(seed)
    rates = (rng.random((4, 6)) * (rng.random((4, 6)) < 0.5)).astype(np.float32)
    inputs = Bernoulli(sp.csr_array(rates) if sparse else rates)
    config = SpikingGCNSettings(steps=steps, threshold=0.3, tau=1.5)
    model = SpikingGCN(6, 3, config, seed)
    found = model(inputs, key=7)
    spikes, counts = draw(inputs, steps, key=7)
    weight = model.weight.detach().clone().requires_grad_()
    expected, _ = run(Neuron("LIF", 0.3, "subtract", "sigmoid", config.alpha), torch.tensor(spikes) @ weight, tau=1.5)
    torch.testing.assert_close(found.logits, expected.mean(0))
    assert found.spikes.tolist() == [counts, expected.sum((1, 2)).long().tolist()]
    labels = torch.tensor([0, 1, 2, 0])
    mean_squared_error(found.logits, labels).backward()
    ((expected.mean(0) - torch.eye(3)[labels]) ** 2).mean().backward()
    torch.testing.assert_close(model.weight.grad, weight.grad, rtol=1e-4, atol=1e-6)


def test_probabilities_are_propagated_features(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "spikegcl.baselines.spiking_gcn.Bernoulli", lambda rates: seen.append(rates) or Bernoulli(rates)
    )
    graph = load_dataset("sbm:nodes=60,classes=3,degree=4,num_features=16")
    split = make_split(graph, 0)
    fit(graph, SpikingGCNSettings(epochs=1, hops=3), split=split)
    p = dense_operator(graph)
    expected = (p @ p @ p @ dense_features(graph)).numpy()
    for rates, nodes in zip(seen, (split.train, split.val, np.arange(60)), strict=True):
        found = rates.toarray() if sp.issparse(rates) else rates
        np.testing.assert_allclose(found, expected[nodes], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("features", [np.array([[0.0, 1.1]]), np.array([[-0.1, 1.0]]), sp.csr_array([[0.0, 2.0]])])
def test_features_outside_the_unit_interval_are_refused(features):
    with pytest.raises(FeatureError, match="scale=true"):
        to_unit_interval(features, scale=False)


def test_scaling_maps_columns_to_the_unit_interval():
    dense = np.array([[0.0, -2.0, 5.0, 0.0], [4.0, 2.0, 5.0, 0.0]], np.float32)
    np.testing.assert_allclose(to_unit_interval(dense, scale=True), [[0, 0, 1, 0], [1, 1, 1, 0]])
    sparse = to_unit_interval(sp.csr_array([[0.0, 2.0, 0.0], [0.0, 4.0, 8.0]]), scale=True)
    assert sp.issparse(sparse)
    np.testing.assert_allclose(sparse.toarray(), [[0, 0.5, 0], [0, 1, 1]])
    signed = to_unit_interval(sp.csr_array([[0.0, -1.0], [0.0, 1.0]]), scale=True)
    np.testing.assert_allclose(signed, [[0, 0], [0, 1]])
