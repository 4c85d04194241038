"""CCA-SSG against its formula, its two encoders, and the parameter counts printed in the SpikeGCL paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.baselines import find_method
from spikegcl.baselines.cca_ssg import CCASSGSettings, agreement_loss, fit, make_encoder
from spikegcl.baselines.inputs import make_inputs
from spikegcl.graph import build_graph
from spikegcl.propagate import make_operator
from strategies import graphs

METHOD = find_method("cca-ssg")
law = settings(max_examples=25, deadline=None)


def test_loss_is_the_formula():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 7, 3))
    z1, z2 = ((h - h.mean(0)) / h.std(0, ddof=1) for h in (first, second))
    expected = -np.trace(z1.T @ z2) / 7
    expected += 0.3 * sum(np.linalg.norm(z.T @ z / 7 - np.eye(3)) ** 2 for z in (z1, z2))
    assert agreement_loss(torch.tensor(first), torch.tensor(second), 0.3).item() == pytest.approx(expected)


def test_constant_column_keeps_the_gradient_finite():
    first = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    first[:, 1] = 2.0
    first.requires_grad_()
    agreement_loss(first, torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), 1e-3).backward()
    assert first.grad is not None and first.grad.isfinite().all()


@law
@given(graphs(), st.integers(1, 3))
def test_convolutions_with_relu_between(graph, layers):
    settings = CCASSGSettings(hidden=4, layers=layers)
    encoder = make_encoder(graph.num_features, settings, 0)
    dense = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    root = dense.sum(1) ** -0.5
    p = torch.tensor(root[:, None] * dense * root, dtype=torch.float32)
    h = torch.tensor(graph.features.toarray() if graph.is_sparse else graph.features)
    for number, layer in enumerate(encoder.convolutions):
        h = p @ (h.relu() if number else h) @ layer.weight + layer.bias
    found = encoder(make_operator(graph), make_inputs(graph))
    torch.testing.assert_close(found, h, rtol=1e-4, atol=1e-5)


def test_mlp_does_not_see_the_graph():
    features = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    path, star = np.stack([np.arange(11), np.arange(1, 12)]), np.stack([np.zeros(11, int), np.arange(1, 12)])
    settings = CCASSGSettings(encoder="mlp", hidden=4, epochs=3)
    embeddings = [fit(build_graph(edges, features), settings).embedding for edges in (path, star)]
    np.testing.assert_array_equal(*embeddings)


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics"])
def test_cpu_preset_changes_the_number_of_epochs_only(dataset):
    paper, cpu = (METHOD.settings_for(preset, dataset) for preset in ("paper", "cpu"))
    assert cpu.epochs <= paper.epochs
    assert cpu == paper.replace(epochs=cpu.epochs)
