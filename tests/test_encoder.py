"""The fast path against the dense reference, forward and backward, and the kernels against plain torch."""

from __future__ import annotations

import dataclasses
import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference import dense_currents, dense_features, dense_operator
from spikegcl import build_graph, neurons
from spikegcl.augment import clean_view, corrupt
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.features import Columns, Features, block_linear, group_linear
from spikegcl.fused import score_spikes
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL, margin_loss
from spikegcl.propagate import make_operator, plain_torch, propagate
from strategies import graphs

CONFIG = Config(channels=5, dropout=0.0, threshold=0.1, head_width=3)


def build(graph, **changes):
    steps = min(3, graph.num_features)
    config = CONFIG.replace(steps=steps, **changes)
    groups = make_groups(graph, steps)
    return SpikeGCL(config, groups, seed=1), groups


def assert_close(found, expected):
    scale = expected.detach().abs().max().clamp(min=1e-3)
    assert float((found - expected).detach().abs().max() / scale) < 1e-4


def assert_gradients_close(found, expected):
    """Relative to the largest gradient of the model: some (a bias before a batch norm) cancel to zero in theory."""
    assert found.keys() == expected.keys()
    scale = max(1e-3, *(float(value.abs().max()) for value in expected.values()))
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) / scale < 1e-4, name


def gradients(model):
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(min_nodes=4, weighted=True),
    layers=st.integers(1, 3),
    encoder=st.sampled_from(["gcn", "sage", "gat"]),
    norm=st.booleans(),
    activation=st.sampled_from(["elu", "relu", "none"]),
    dropped=st.booleans(),
    wide=st.booleans(),
)
def test_currents_and_gradients_agree_with_the_dense_reference(graph, layers, encoder, norm, activation, dropped, wide):
    model, groups = build(graph, layers=layers, encoder=encoder, batch_norm=norm, activation=activation)
    if wide:  # more columns than channels: the weights are multiplied before the graph
        model.encoder.propagates_first = False
    operator = make_operator(graph, model.encoder.operator_kind)
    drop = 0.4 if dropped else 0.0
    view = corrupt(operator, Features(graph), groups, edge_drop=drop, shuffle=True, drop=0.0, key=7)
    kept = dataclasses.replace(graph)
    if dropped:
        kept = drop_pairs(graph, view.operator)
    p = dense_operator(kept, model.encoder.operator_kind)
    target = torch.randn(graph.num_nodes, model.bits, generator=torch.Generator().manual_seed(0))

    expected, smallest = dense_currents(model, p, dense_features(graph), view.columns.order)
    assume(smallest > 1e-3)
    expected = torch.cat(list(expected), 1)
    (expected * target).sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    found = model.encoder.currents(view, 0, model.steps).dense()
    (found * target).sum().backward()
    assert_close(found, expected)
    assert_gradients_close(gradients(model), wanted)


def drop_pairs(graph, operator):
    """The graph without the edges whose weight the operator has set to zero."""
    import numpy as np

    from spikegcl.graph import build_graph

    rows, columns, weights = operator.rows.numpy(), operator.indices.numpy(), operator.weights.numpy()
    keep = (rows < columns) & (weights > 0)
    edges = np.stack([rows[keep], columns[keep]]).astype(np.int64)
    return build_graph(edges, graph.features, num_nodes=graph.num_nodes, weights=weights[keep])


@settings(max_examples=30, deadline=None)
@given(
    graph=graphs(min_nodes=6),
    kind=st.sampled_from(["IF", "LIF", "PLIF"]),
    reset=st.sampled_from(["zero", "subtract"]),
    surrogate=st.sampled_from(neurons.SURROGATES),
    block=st.integers(1, 3),
    encoder=st.sampled_from(["gcn", "sage", "gat"]),
    drop=st.sampled_from([0.0, 0.5]),
)
def test_kernels_agree_with_plain_torch(graph, kind, reset, surrogate, block, encoder, drop):
    """Scores and all gradients of both views, with dropout and dropped edges, by kernels and without them."""
    results = []
    for context in (nullcontext, plain_torch):
        with context():
            model, groups = build(
                graph, neuron=kind, reset=reset, surrogate=surrogate, block=block, encoder=encoder, tau=1.5, layers=2
            )
            operator, features = make_operator(graph, model.encoder.operator_kind), Features(graph)
            order = groups.order
            assume(dense_currents(model, dense_operator(graph), dense_features(graph), order)[1] > 1e-3)
            views = [
                clean_view(operator, features, groups, drop=drop, key=3),
                corrupt(operator, features, groups, edge_drop=0.3, shuffle=True, drop=drop, key=4),
            ]
            scores = [model.scores(view, 0, model.steps, model.rest(view))[0] for view in views]
            margin_loss(*scores, margin=0.5).backward()
            results.append((scores, gradients(model)))
    (fast, fast_grads), (plain, plain_grads) = results
    for a, b in zip(fast, plain, strict=True):
        assert_close(a, b)
    assert_gradients_close(fast_grads, plain_grads)


@pytest.mark.parametrize("reset", ["zero", "subtract"])
@pytest.mark.parametrize("kind", ["IF", "LIF", "PLIF"])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_gradients_stop_at_block_borders(kind, reset, block):
    """With the loss on the last step only, exactly the steps of its block receive gradient."""
    from spikegcl.fused import Affine

    current = torch.full((1, 4 * 2), 0.3, requires_grad=True)
    zero = torch.zeros(8)
    neuron = neurons.Neuron(kind, 1.0, reset)
    head = torch.tensor([1.0, -2.0])
    scores, _ = score_spikes(
        Affine(current * 1, torch.zeros(1), zero, zero), torch.zeros(1, 2), neuron, torch.tensor(2.0), head, block
    )
    scores[:, -1].sum().backward()
    touched = current.grad.view(4, 2).abs().sum(1) > 0
    assert touched.tolist() == [t >= 4 - block for t in range(4)]


@settings(max_examples=30, deadline=None)
@given(graph=graphs(weighted=True), kind=st.sampled_from(["gcn", "mean"]), width=st.integers(1, 5))
def test_wide_product_is_narrow_products(graph, kind, width):
    operator = make_operator(graph, kind)
    x = torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0))
    wide = propagate(operator, x)
    narrow = torch.cat([propagate(operator, column) for column in x.split(1, 1)], 1)
    assert torch.equal(wide, narrow)
    assert_close(wide, dense_operator(graph, kind) @ x)
    assert_close(operator.reach, dense_operator(graph, kind).sum(1))


def test_dropped_edges_are_dropped_in_both_directions_at_the_requested_rate():
    operator = make_operator(load_dataset("digits"))
    dropped = operator.drop_edges(0.3, key=11)
    dense = torch.sparse_csr_tensor(dropped.indptr, dropped.indices.long(), dropped.weights).to_dense()
    assert torch.equal(dense, dense.T)
    assert bool((dense.diagonal() == 1).all())
    off = (operator.rows != operator.indices).numpy()
    assert abs((dropped.weights.numpy()[off] == 0).mean() - 0.3) < 0.01
    assert not torch.equal(dropped.weights, operator.drop_edges(0.3, key=12).weights)


@pytest.mark.parametrize("channels", [8, 32])
def test_steps_that_read_all_columns_give_what_their_copies_give(channels):
    graph = build_graph([[0], [1]], np.random.default_rng(0).standard_normal((50, 20), dtype=np.float32))
    features, groups = Features(graph), make_groups(graph, 3, "all")
    columns = Columns(groups.order)
    weight = torch.randn(60, channels, generator=torch.Generator().manual_seed(0), requires_grad=True)
    copied = block_linear(features.gather(columns, 0, 60), weight, groups.bounds)
    (expected,) = torch.autograd.grad(copied.square().sum(), weight)
    shared = group_linear(features, columns, groups, 0, 3, weight)
    assert torch.equal(shared, copied)
    assert torch.equal(group_linear(features, columns, groups, 1, 2, weight[20:]), copied[:, channels:])
    assert_close(*torch.autograd.grad(shared.square().sum(), weight), expected)


def test_columns_in_another_order_or_dropped_are_not_taken_for_all():
    bounds = np.array([0, 2, 4])
    assert Columns(np.array([0, 1, 0, 1])).read_all(2, bounds, 0)
    for columns in (Columns(np.array([0, 1, 1, 0])), Columns(np.array([0, 1, 0, 1]), drop=0.5)):
        assert not columns.read_all(2, bounds, 0)
    assert not Columns(np.arange(4)).read_all(4, bounds, 0)


def test_operators_that_lost_edges_share_the_transpose_of_their_pattern():
    operator = make_operator(load_dataset("sbm:nodes=50,classes=2"), "sum")
    assert operator.drop_edges(0.3, 1).drop_edges(0.3, 2).mirror is operator.mirror


def test_a_model_keeps_nothing_of_the_graph_it_saw():
    sizes = []
    for nodes in (50, 100):
        graph = load_dataset(f"sbm:nodes={nodes},classes=2,num_features=32")
        model, groups = build(graph, encoder="gat")
        model.embed(clean_view(make_operator(graph, "sum"), Features(graph), groups))
        sizes.append(len(pickle.dumps(model)))
    assert sizes[0] == sizes[1]
