"""BGRL: loss, schedules, the moving average, gradients that must not flow, printed parameter counts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from spikegcl import load_dataset
from spikegcl.baselines import bgrl, find_method
from spikegcl.baselines.inputs import make_inputs
from spikegcl.propagate import make_operator

METHOD = find_method("bgrl")
SMALL = bgrl.BGRLSettings(hidden=6, embedding=4, predictor=5, epochs=10)


@pytest.fixture(scope="module")
def views() -> tuple[bgrl.View, bgrl.View]:
    graph = load_dataset("sbm:nodes=40,classes=2,degree=4")
    operator, inputs = make_operator(graph), make_inputs(graph)
    return tuple((operator.drop_edges(0.3, key), inputs.mask_columns(0.2, key)) for key in (1, 2))


@pytest.fixture
def networks(views) -> tuple[bgrl.Online, bgrl.Encoder]:
    width = views[0][1].shape[1]
    return bgrl.Online(width, SMALL, seed=0), bgrl.make_target(width, SMALL, seed=0)


def test_loss_is_the_squared_distance_of_unit_vectors_across_views(networks, views):
    online, target = networks
    expected = 0.0
    for mine, other in (views, views[::-1]):
        q, t = online.predict(*mine), target(*other)
        q, t = q / q.norm(dim=1, keepdim=True), t / t.norm(dim=1, keepdim=True)
        expected += (q - t).square().sum(1).mean() / 2  # 1 - cos of unit vectors
    torch.testing.assert_close(bgrl.bootstrap_loss(online, target, *views), expected)


def test_all_of_the_online_network_and_nothing_of_the_target_gets_a_gradient(networks, views):
    online, target = networks
    bgrl.bootstrap_loss(online, target, *views).backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in online.parameters())
    assert all(
        parameter.grad.abs().max() > 0 for name, parameter in online.named_parameters() if not name.endswith("bias")
    )


def test_target_weights_are_the_closed_form_of_the_moving_average(networks):
    online, target = networks
    first = [parameter.clone() for parameter in target.parameters()]
    momenta = [bgrl.target_momentum(step, SMALL) for step in range(SMALL.epochs)]
    seen = []
    for momentum in momenta:
        with torch.no_grad():
            for parameter in online.parameters():
                parameter.add_(torch.randn_like(parameter))
        seen.append([parameter.detach().clone() for parameter in online.encoder.parameters()])
        bgrl.follow(target, online.encoder, momentum)
    for number, parameter in enumerate(target.parameters()):
        expected = math.prod(momenta) * first[number]
        for step, momentum in enumerate(momenta):
            expected = expected + (1 - momentum) * math.prod(momenta[step + 1 :]) * seen[step][number]
        torch.testing.assert_close(parameter, expected)


def test_embedding_uses_the_statistics_of_the_graph_it_is_given(networks, views):
    encoder = networks[0].encoder
    torch.testing.assert_close(encoder.eval()(*views[0]), encoder.train()(*views[0]))


def test_networks_start_from_different_weights(networks):
    online, target = networks
    pairs = zip(online.encoder.convolutions, target.convolutions, strict=True)
    assert not any(torch.equal(mine.weight, theirs.weight) for mine, theirs in pairs)


def test_schedules_have_the_published_shape():
    published = METHOD.settings_for("paper", "photo")
    rates = [bgrl.learning_rate(step, published) for step in (0, 500, 1000, 5500, 10_000)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0])
    momenta = [bgrl.target_momentum(step, published) for step in (0, 5000, 10_000)]
    assert momenta == pytest.approx([0.99, 0.995, 1])


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics"])
def test_cpu_preset_changes_the_budget_and_not_the_model(dataset):
    paper, cpu = (dataclasses.asdict(METHOD.settings_for(name, dataset)) for name in ("paper", "cpu"))
    changed = {name for name in paper if paper[name] != cpu[name]}
    assert changed <= {"epochs", "lr", "momentum"}
