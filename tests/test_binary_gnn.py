"""BinaryGNN against its formula, its cascade of stages, and the parameter counts printed in the SpikeGCL paper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from spikegcl.baselines import binary_gnn
from spikegcl.baselines.binary_gnn import (
    BINARY,
    CASCADE,
    BinaryGNN,
    BinaryGNNSettings,
    distillation_loss,
    fit,
)
from spikegcl.baselines.inputs import make_inputs
from spikegcl.datasets import load_dataset, make_split
from spikegcl.propagate import make_operator
from strategies import graphs

law = settings(deadline=None, max_examples=25)


@pytest.mark.parametrize("stage", CASCADE)
@law
@given(graph=graphs(weighted=True))
def test_logits_are_those_of_the_formula(stage, graph):
    model = BinaryGNN(graph.num_features, 3, BinaryGNNSettings(hidden=5), 0).eval()
    model.stage = stage
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in (*model.neighbour, *model.root):
            block.scale.fill_(0.5)
            block.channel_scale.uniform_(0.5, 2, generator=generator)
            if block.normalise is not None:
                block.normalise.running_mean.normal_(generator=generator)
                block.normalise.running_var.uniform_(0.5, 2, generator=generator)
                block.normalise.weight.uniform_(0.5, 2, generator=generator)
        adjacency = torch.tensor(graph.adjacency.toarray())
        mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1e-9)
        h = torch.tensor(graph.features.toarray() if graph.is_sparse else graph.features)
        for number, (neighbour, root) in enumerate(zip(model.neighbour, model.root)):
            parts = []
            for block, x in ((neighbour, mean @ h), (root, h)):
                if number:
                    n = block.normalise
                    x = (x - n.running_mean) / (n.running_var + 1e-5).sqrt() * n.weight + n.bias
                    assume(not (x.abs() < 1e-4).any())  # a number near zero may have either sign
                    x = stage.quantise(x)
                weight = torch.where(block.weight < 0, -1.0, 1.0) if stage.binary_weights else block.weight
                parts.append(x @ weight * block.scale * block.channel_scale)
            h = sum(parts)
        torch.testing.assert_close(model(make_operator(graph, "mean"), make_inputs(graph)), h, rtol=1e-3, atol=1e-3)


def test_stages_differ_in_inputs_and_weights_as_described():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5])
    quantised = [stage.quantise(x) for stage in CASCADE]
    torch.testing.assert_close(quantised[0], torch.tensor([0, 0, 0, 0.5]))
    torch.testing.assert_close(quantised[1], torch.tanh(x))
    assert quantised[2].tolist() == quantised[3].tolist() == [-1, -1, 1, 1]
    assert [stage.binary_weights for stage in CASCADE] == [False, False, False, True]
    assert CASCADE[-1] == BINARY


def test_distillation_loss_is_the_formula():
    rng = np.random.default_rng(0)
    student, teacher = rng.standard_normal((2, 6, 4))
    targets = np.array([0, 1, 2, 3, 0, 1])

    def softmax(z):
        return np.exp(z) / np.exp(z).sum(1, keepdims=True)

    p, q = softmax(teacher / 2), softmax(student / 2)
    expected = 0.7 * -np.log(softmax(student)[np.arange(6), targets]).mean()
    expected += 0.3 * 4 * (p * np.log(p / q)).sum(1).mean()
    chosen = BinaryGNNSettings(strength=0.3, temperature=2.0)
    found = distillation_loss(torch.tensor(student), torch.tensor(teacher), torch.tensor(targets), chosen)
    assert found.item() == pytest.approx(expected)


def test_weights_stay_within_one_and_keep_learning():
    graph = load_dataset("digits")
    model = BinaryGNN(graph.num_features, 10, BinaryGNNSettings(hidden=8), 0)
    with torch.no_grad():
        model.root[0].weight.fill_(1.5)
    logits = model(make_operator(graph, "mean"), make_inputs(graph))
    assert all(block.weight.abs().max() <= 1 for block in (*model.neighbour, *model.root))
    logits.square().sum().backward()
    assert (model.root[0].weight.grad != 0).any()  # at the border the gradient passes; beyond it, it would not


def test_distillation_runs_every_stage_from_the_weights_of_the_one_before(monkeypatch):
    graph = load_dataset("digits")
    split = make_split(graph, 0)
    starts, inner = [], binary_gnn.fit_classifier

    def record(model, *arguments, **options):
        before = model.root[0].weight.detach().clone()
        fitted = inner(model, *arguments, **options)
        starts.append((model.stage, before, model.root[0].weight.detach().clone()))
        return fitted

    monkeypatch.setattr(binary_gnn, "fit_classifier", record)
    epochs = []
    fitted = fit(
        graph, BinaryGNNSettings(hidden=16, epochs=12, distil=True), split=split,
        on_epoch=lambda epoch: epochs.append(epoch.epoch),
    )  # fmt: skip
    assert [stage for stage, _, _ in starts] == list(CASCADE)
    for (_, _, left), (_, begun, _) in itertools.pairwise(starts):
        assert torch.equal(left, begun)
    assert epochs == [epoch.epoch for epoch in fitted.history] == list(range(1, 13))
    assert 10 <= fitted.epoch <= 12  # of the last stage


@pytest.mark.parametrize("distil", [False, True])
def test_learns_digits(distil):
    graph = load_dataset("digits")
    split = make_split(graph, 0)
    fitted = fit(graph, BinaryGNNSettings(epochs=60, distil=distil), split=split)
    hits = fitted.predictions == graph.labels
    assert fitted.select == "validation" and hits[split.test].mean() > 0.85
    assert fitted.history[fitted.epoch - 1].val_accuracy == pytest.approx(hits[split.val].mean())
