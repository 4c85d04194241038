"""Bi-GCN: both variants against dense formulas, 1-bit inference against floats, printed parameter counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from spikegcl import noise
from spikegcl.baselines.bi_gcn import BiGCNSettings, binarise_features, fit, make_model
from spikegcl.baselines.binary import packed
from spikegcl.baselines.inputs import keep
from spikegcl.datasets import DATASETS, load_dataset, make_split
from spikegcl.energy import Operations, binary_layer, energy
from spikegcl.graph import build_graph
from spikegcl.propagate import make_operator, plain_torch
from strategies import graphs

law = settings(deadline=None, max_examples=25)
VARIANTS = {"gcn": "column", "saint": "row"}


def dense_features(graph):
    return torch.tensor(graph.features.toarray() if graph.is_sparse else graph.features)


@law
@given(graphs(min_features=2))
def test_features_are_standardised_by_column_or_row_and_binarised(graph):
    x = dense_features(graph).double()
    by_column = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    by_row = (x - x.mean(1, keepdim=True)) / (x.std(1, correction=0, keepdim=True) + 1e-4)
    for kind, z in (("column", by_column), ("row", by_row)):
        made = binarise_features(graph, kind)
        torch.testing.assert_close(made.scale, z.abs().mean(1, keepdim=True).float(), rtol=1e-3, atol=1e-4)
        clear = z.abs() > 1e-4
        assert torch.equal(made.signs.dense()[clear], z.sign()[clear].float())


def dense_model(model, graph, inputs):
    """Logits by dense matrices in the words of the paper; a hidden number whose sign is in doubt ends the example."""
    adjacency = torch.tensor(graph.adjacency.toarray())

    def symmetric(matrix):
        root = torch.where(matrix.sum(1) > 0, matrix.sum(1).rsqrt(), 0)
        return root[:, None] * matrix * root

    def layer(x, of):
        x_hat = x.abs().mean(1, keepdim=True) * torch.where(x < 0, -1.0, 1.0)
        w_hat = of.weight.abs().mean(0) * torch.where(of.weight < 0, -1.0, 1.0)
        return x_hat @ w_hat + of.bias

    x = inputs.scale * inputs.signs.dense()
    if hasattr(model, "first"):
        p = symmetric(adjacency + torch.eye(graph.num_nodes))
        hidden = p @ layer(x, model.first)
        assume(not ((hidden != 0) & (hidden.abs() < 1e-4)).any())
        return p @ layer(hidden, model.second)
    p = symmetric(adjacency)
    first = p @ layer(x, model.neighbour[0]) + layer(x, model.root[0])
    assume(not ((first != 0) & (first.abs() < 1e-4)).any())
    second = p @ layer(first, model.neighbour[1]) + layer(first, model.root[1])
    return torch.cat([first, second], 1) @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("variant", VARIANTS)
@law
@given(graph=graphs(weighted=True))
def test_logits_are_those_of_the_formula(variant, graph):
    model = make_model(graph.num_features, 3, BiGCNSettings(variant=variant, hidden=5), 0)
    inputs = binarise_features(graph, VARIANTS[variant])
    with torch.no_grad():
        found = model(make_operator(graph, model.operator_kind), inputs)
        expected = dense_model(model, graph, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@law
@given(graph=graphs())
def test_bits_and_floats_give_identical_logits(variant, graph):
    model = make_model(graph.num_features, 4, BiGCNSettings(variant=variant, hidden=9), 1)
    inputs, operator = binarise_features(graph, VARIANTS[variant]), make_operator(graph, model.operator_kind)
    with torch.no_grad():
        floats = model(operator, inputs)
        assert torch.equal(packed(model)(operator, inputs), floats)
        with plain_torch():
            floats = model(operator, inputs)
            assert torch.equal(packed(model)(operator, inputs), floats)


def test_dropped_entries_are_absent_from_the_second_layer():
    """Dropout follows the sign: the layer on signs and the head see the same entries, none of them as +1."""
    graph = load_dataset("digits")
    settings = BiGCNSettings(variant="saint", hidden=6, dropout=0.5)
    model, inputs = make_model(graph.num_features, 10, settings, 0), binarise_features(graph, "row")
    operator = make_operator(graph, "symmetric")
    with torch.no_grad():
        first = model.neighbour[0](inputs)
        scale = first.abs().mean(1, keepdim=True)
        kept = keep(tuple(first.shape), 0.5, noise.derive(7, 1))
        signed = torch.where(first < 0, -1.0, 1.0) * kept * 2
        root = model.root[1]
        weight = root.weight.abs().mean(0) * torch.where(root.weight < 0, -1.0, 1.0)
        torch.testing.assert_close(root(first, 0.5, noise.derive(7, 1)), scale * signed @ weight + root.bias)
        assert model(operator, inputs, 0.5, 7).shape == (graph.num_nodes, 10)


def test_constant_columns_are_plus_one_and_empty_rows_are_silent():
    features = np.zeros((4, 40), np.float32)
    features[:3, 0], features[1, 2] = 1, 1
    graph = build_graph(np.array([[0, 1], [1, 2]]), features)
    assert (binarise_features(graph, "column").signs.dense()[:, 5] == 1).all()
    by_row = binarise_features(graph, "row")
    assert by_row.scale[3] == 0 and (by_row.scale[:3] > 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_learns_digits(variant):
    graph = load_dataset("digits")
    split = make_split(graph, 0)
    settings = BiGCNSettings(variant=variant, hidden=64, epochs=40, lr=0.01)
    fitted = fit(graph, settings, split=split)
    hits = fitted.predictions == graph.labels
    assert fitted.select == "validation" and len(fitted.history) == 40
    assert hits[split.test].mean() > 0.85
    assert max(epoch.val_accuracy for epoch in fitted.history) == pytest.approx(hits[split.val].mean())


def test_energy_of_one_layer_of_256_is_what_the_paper_prints_for_amazon():
    """0.67 and 0.33 mJ by its formula with d_in = d_out = 256; other graphs follow no single width."""
    for dataset, printed in (("computers", 0.67), ("photo", 0.33)):
        info = DATASETS[dataset]
        layer = binary_layer("layer", info.nodes, info.edges, 256, 256)
        assert 1e3 * energy(Operations((layer,))) == pytest.approx(printed, abs=0.01)
