"""GGD against its formula, its readout, and the parameter counts printed in the SpikeGCL paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.baselines import find_method
from spikegcl.baselines.ggd import GGD, GGDSettings, read_out
from spikegcl.baselines.inputs import make_inputs
from spikegcl.noise import generator
from spikegcl.propagate import make_operator
from strategies import graphs

METHOD = find_method("ggd")
law = settings(max_examples=25, deadline=None)


def normalised(graph) -> torch.Tensor:
    dense = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    root = dense.sum(1) ** -0.5
    return torch.tensor(root[:, None] * dense * root, dtype=torch.float32)


@law
@given(graphs(), st.booleans())
def test_loss_is_the_formula(graph, channel_slopes):
    model = GGD(graph.num_features, GGDSettings(hidden=4, channel_slopes=channel_slopes), 0)
    order = torch.randperm(graph.num_nodes, generator=generator(0))
    x = torch.tensor(graph.features.toarray() if graph.is_sparse else graph.features)
    expected = 0.0
    for features, sign in ((x, 1), (x[order], -1)):
        h = normalised(graph) @ features @ model.convolution.weight + model.convolution.bias
        h = torch.where(h > 0, h, model.slope.weight * h)
        expected += torch.log1p(torch.exp(-sign * model.projection(h).sum(1))).sum()
    found = model.loss(make_operator(graph), make_inputs(graph), order)
    torch.testing.assert_close(found, expected / (2 * graph.num_nodes), rtol=1e-4, atol=1e-5)


@law
@given(graphs(), st.integers(0, 4))
def test_readout_adds_the_power_of_the_graph(graph, hops):
    h = torch.randn(graph.num_nodes, 3, generator=generator(0))
    expected = h + torch.linalg.matrix_power(normalised(graph), hops) @ h
    torch.testing.assert_close(read_out(make_operator(graph), h, hops), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics"])
def test_cpu_preset_changes_the_budget_and_not_the_model(dataset):
    paper, cpu = (METHOD.settings_for(preset, dataset) for preset in ("paper", "cpu"))
    assert cpu.epochs <= paper.epochs
    assert cpu == paper.replace(epochs=cpu.epochs, lr=cpu.lr)
