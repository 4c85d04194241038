"""What the methods are built from, and GCN, GAT and DGI, against formulas of a few lines on small graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spikegcl import noise
from spikegcl.baselines.attention import attend
from spikegcl.baselines.common import Convolution, Validated, initialise, train_loop
from spikegcl.baselines.dgi import DGI, DGISettings
from spikegcl.baselines.gat import GAT, GATSettings
from spikegcl.baselines.gcn import GCN, GCNSettings
from spikegcl.baselines.inputs import dropout, keep, make_inputs, normalise_rows
from spikegcl.propagate import make_operator, plain_torch
from spikegcl.training import Clock
from strategies import graphs

law = settings(max_examples=25, deadline=None)


def dense(graph) -> torch.Tensor:
    return torch.tensor(graph.features.toarray() if graph.is_sparse else graph.features)


def normalised(graph) -> torch.Tensor:
    matrix = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    root = matrix.sum(1) ** -0.5
    return torch.tensor(root[:, None] * matrix * root, dtype=torch.float32)


@law
@given(graphs(), st.sampled_from([0.0, 0.4]), st.booleans(), st.booleans())
def test_inputs_multiply_like_their_dense_matrix(graph, rate, masked, plain):
    inputs = make_inputs(graph).dropout(rate, 7)
    inputs = inputs.mask_columns(0.5, 8) if masked else inputs
    x = dense(graph)
    if graph.is_sparse:
        values = dropout(inputs.values, rate, 7)
        x[x != 0] = values
    else:
        x = dropout(x, rate, 7)
    x = x if inputs.columns is None else x * inputs.columns.T
    weight = torch.randn(graph.num_features, 3, generator=noise.generator(0), requires_grad=True)
    slope = torch.randn(graph.num_nodes, 3, generator=noise.generator(1))
    if plain:
        with plain_torch():
            out = inputs @ weight
            out.backward(slope)
    else:
        out = inputs @ weight
        out.backward(slope)
    torch.testing.assert_close(out, x @ weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad, x.T @ slope, rtol=1e-4, atol=1e-5)


def test_normalised_rows_sum_to_one_and_empty_ones_stay_empty():
    rows = normalise_rows(np.array([[1, -3], [0, 0]], np.float32))
    np.testing.assert_allclose(rows, [[0.25, -0.75], [0, 0]])


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_dropout_keeps_the_share_and_the_mean(rate):
    kept = keep((400, 500), rate, 1)
    assert float(kept.float().mean()) == pytest.approx(1 - rate, abs=0.005)
    assert float(dropout(torch.ones(400, 500), rate, 1).mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(kept, keep((400, 500), rate, 1))


@law
@given(graphs(), st.integers(1, 12))
def test_convolution_is_the_formula_whichever_side_travels(graph, width):
    layer = Convolution(graph.num_features, width)
    initialise(layer, noise.generator(0))
    operator, inputs = make_operator(graph), make_inputs(graph)
    order = torch.randperm(graph.num_nodes, generator=noise.generator(1))
    clean, shuffled = layer.contrast(operator, inputs, order)
    for found, x in ((layer(operator, inputs), dense(graph)), (clean, dense(graph)), (shuffled, dense(graph)[order])):
        expected = normalised(graph) @ x @ layer.weight + layer.bias
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@dataclass
class Curve:
    """Validation after every epoch, as it will come."""

    values: list[tuple[float, float]]

    def __call__(self) -> Validated:
        return Validated(*self.values.pop(0))


def descend(**options):
    """Gradient descent on w^2 from 1: after epoch e the weight is 0.8^e."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    outcome = train_loop(module, optimiser, lambda epoch: (module.weight**2).sum(), clock=Clock(), **options)
    return outcome, float(module.weight.detach())


def test_loop_keeps_the_last_epoch_or_the_best():
    outcome, weight = descend(epochs=4)
    assert (outcome.epoch, weight) == (4, pytest.approx(0.8**4))
    curve = [(0.5, 1.0), (0.7, 0.9), (0.7, 0.8), (0.6, 0.7)]
    outcome, weight = descend(epochs=4, select="validation", validate=Curve(curve))
    assert (outcome.epoch, weight) == (3, pytest.approx(0.8**3))  # the highest accuracy, of equals the lowest loss
    assert [epoch.val_accuracy for epoch in outcome.history] == [0.5, 0.7, 0.7, 0.6]
    outcome, weight = descend(epochs=0, select="loss")
    assert (outcome.epoch, weight) == (0, 1.0)


def test_patience_waits_for_accuracy_and_loss():
    curve = [(0.5, 1.0), (0.5, 0.9), (0.4, 0.95), (0.6, 1.2), (0.6, 1.3), (0.5, 1.0), (0.9, 0.1)]
    outcome, _ = descend(epochs=7, patience=2, select="validation", validate=Curve(curve))
    assert (len(outcome.history), outcome.epoch) == (6, 4)


# ----------------------------------------------------------------------------------------------- GCN, GAT and DGI


@law
@given(graphs())
def test_gcn_is_the_formula(graph):
    model = GCN(graph.num_features, 3, GCNSettings(hidden=5), 0)
    p = normalised(graph)
    hidden = torch.relu(p @ dense(graph) @ model.first.weight + model.first.bias)
    expected = p @ hidden @ model.second.weight + model.second.bias
    torch.testing.assert_close(model(make_operator(graph), make_inputs(graph)), expected, rtol=1e-4, atol=1e-5)


@law
@given(graphs(), st.booleans())
def test_dgi_loss_is_the_formula(graph, project):
    model = DGI(graph.num_features, DGISettings(hidden=4, project_summary=project), 0)
    order = torch.randperm(graph.num_nodes, generator=noise.generator(0))
    h, other = (
        torch.nn.functional.prelu(
            normalised(graph) @ x @ model.convolution.weight + model.convolution.bias, model.slope.weight
        )
        for x in (dense(graph), dense(graph)[order])
    )
    summary = model.projection(torch.sigmoid(h.mean(0)))
    expected = 0.0
    for rows, sign in ((h, 1), (other, -1)):
        for row in rows:
            expected -= torch.log(torch.sigmoid(sign * (row @ model.bilinear @ summary + model.bias)))
    found = model.loss(make_operator(graph), make_inputs(graph), order)
    torch.testing.assert_close(found, expected / (2 * graph.num_nodes), rtol=1e-4, atol=1e-5)


def attention_by_hand(graph, x, receiver, sender):
    """out_i = sum_j softmax_j(LeakyReLU(s_i + t_j)) x_j over neighbours and the node itself, head by head."""
    present = torch.tensor(graph.adjacency.toarray() + np.eye(graph.num_nodes)) > 0
    heads = x.view(len(x), receiver.shape[1], -1)
    out = []
    for head in range(receiver.shape[1]):
        score = torch.nn.functional.leaky_relu(receiver[:, head, None] + sender[None, :, head], 0.2)
        out.append(score.masked_fill(~present, -torch.inf).softmax(1) @ heads[:, head])
    return torch.stack(out, 1).reshape(x.shape)


@law
@given(graphs(), st.booleans())
def test_attention_and_its_gradient_are_those_of_the_formula(graph, plain):
    rng = noise.generator(0)
    operator = make_operator(graph, "sum")
    slope = torch.randn(graph.num_nodes, 6, generator=rng)
    given = [torch.randn(graph.num_nodes, width, generator=rng, requires_grad=True) for width in (6, 3, 3)]
    expected = attention_by_hand(graph, *given)
    wanted = torch.autograd.grad(expected, given, slope)
    if plain:
        with plain_torch():
            found = attend(operator, *given)
    else:
        found = attend(operator, *given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(torch.autograd.grad(found, given, slope), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@law
@given(graphs(), st.integers(0, 100))
def test_dropped_attention_is_the_same_on_every_device(graph, key):
    rng = noise.generator(key)
    operator = make_operator(graph, "sum")
    slope = torch.randn(graph.num_nodes, 6, generator=rng)
    given = [torch.randn(graph.num_nodes, width, generator=rng, requires_grad=True) for width in (6, 3, 3)]
    fast = attend(operator, *given, 0.5, key)
    with plain_torch():
        slow = attend(operator, *given, 0.5, key)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(fast, given, slope), torch.autograd.grad(slow, given, slope), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@law
@given(graphs())
def test_gat_is_the_formula(graph):
    model = GAT(graph.num_features, 3, GATSettings(heads=2, channels=4, out_heads=2), 0)
    x = dense(graph)
    for layer in (model.first, model.second):
        z = x @ layer.weight
        heads = z.view(len(z), layer.heads, -1)
        x = attention_by_hand(graph, z, (heads * layer.receiver).sum(2), (heads * layer.sender).sum(2))
        x = (x.view_as(heads).mean(1) if layer.average else x) + layer.bias
        x = x if layer.average else torch.nn.functional.elu(x)
    found = model(make_operator(graph, "sum"), make_inputs(graph))
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)
