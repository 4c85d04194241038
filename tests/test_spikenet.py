"""SpikeNet: what is sampled, the pass against plain steps, printed parameter counts."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import dense_features
from spikegcl.baselines import find_method
from spikegcl.baselines.inputs import make_inputs
from spikegcl.baselines.spikenet import Sampler, SpikeNet, SpikeNetSettings, mean_rows
from spikegcl.graph import build_graph
from spikegcl.neurons import Neuron, run
from strategies import graphs

METHOD = find_method("spikenet")


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(1, 4))
def test_samples_are_neighbours_or_the_node(graph, count):
    drawn = Sampler(graph).draw(np.arange(graph.num_nodes), 3, count, np.random.default_rng(0))
    assert drawn.shape == (3, graph.num_nodes, count)
    reachable = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    assert (reachable[np.arange(graph.num_nodes)[:, None], drawn] > 0).all()


def test_samples_are_uniform_and_drawn_anew_at_every_step():
    star = build_graph(np.array([[0, 0, 0], [1, 2, 3]]), np.ones((5, 1)))
    drawn = Sampler(star).draw(np.array([0, 4]), 4000, 2, np.random.default_rng(0))
    shares = np.bincount(drawn[:, 0].ravel(), minlength=5) / 8000
    assert np.abs(shares[:4] - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 8000)
    assert (drawn[:, 1] == 4).all()


def test_mean_of_rows():
    x = torch.arange(8.0).view(4, 2)
    found = mean_rows(np.array([[0, 3], [1, 1]]), 4, "cpu") @ x
    assert found.tolist() == [[3, 4], [2, 3]]


@settings(max_examples=20, deadline=None)
@given(graphs(min_nodes=4), st.integers(0, 1000))
def test_pass_is_that_of_plain_steps(graph, key):
    """Logits, spikes and gradients of two of the nodes, with the same samples, node by node and step by step."""
    config = SpikeNetSettings(hidden=5, channels=4, steps=3, near=2, far=3, threshold=0.4)
    model, sampler, nodes = SpikeNet(graph.num_features, 3, config, 1), Sampler(graph), np.array([1, 3])
    found = model(make_inputs(graph), sampler, nodes, key=key)
    found.logits.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    rng = np.random.Generator(np.random.SFC64(key))
    far = sampler.draw(np.arange(graph.num_nodes), 3, 3, rng)
    near = sampler.draw(nodes, 3, 2, rng)
    x, neuron = dense_features(graph), Neuron("LIF", 0.4, "zero", "sigmoid", 1.0)
    (own1, own2), (others1, others2) = model.own, model.others
    currents = torch.stack([own1(x) + torch.stack([others1(x[k]).mean(0) for k in far[t]]) for t in range(3)])
    first, _ = run(neuron, currents, fade=0.7, rise=0.2)
    currents = [own2(first[t][nodes]) + torch.stack([others2(first[t][k]).mean(0) for k in near[t]]) for t in range(3)]
    second, _ = run(neuron, torch.stack(currents), fade=0.7, rise=0.2)
    logits = model.head(torch.cat(list(second), 1))
    logits.square().sum().backward()
    torch.testing.assert_close(found.logits, logits)
    assert found.spikes.tolist() == [first.sum((1, 2)).long().tolist(), second.sum((1, 2)).long().tolist()]
    for grad, parameter in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-3, atol=1e-5)
