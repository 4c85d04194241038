"""SUGRL against its formula, its sampled neighbours, and the parameter counts printed in the SpikeGCL paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from spikegcl.baselines import find_method
from spikegcl.baselines.sugrl import TINY, SUGRLSettings, draw_neighbours, fit, margin_loss
from spikegcl.graph import build_graph
from spikegcl.noise import generator
from spikegcl.propagate import make_operator
from strategies import graphs

METHOD = find_method("sugrl")
law = settings(max_examples=25, deadline=None)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed, "test"), dtype=torch.float64)


@pytest.mark.parametrize("upper_mean", [False, True])
def test_loss_is_the_formula(upper_mean):
    settings = SUGRLSettings(
        structural=3.0, neighbour=5.0, upper=0.7, margin=0.6, slack=0.3, negatives=2, upper_mean=upper_mean
    )
    anchor, structural, neighbour = draw(3, 8, 4)
    orders = [torch.randperm(8, generator=generator(1)), torch.randperm(8, generator=generator(2))]
    expected = 0.0
    for order in orders:
        for i in range(8):
            to_s, to_n, to_negative = (
                float((anchor[i] - other + TINY).square().sum().sqrt())
                for other in (structural[i], neighbour[i], anchor[order[i]])
            )
            expected += 3.0 / 8 * max(to_s - to_negative + 0.6, 0) + 5.0 / 8 * max(to_n - to_negative + 0.6, 0)
            expected += 0.7 / 2 / (8 if upper_mean else 1) * max(to_negative - to_s - 0.6 - 0.3, 0)
    assert margin_loss(anchor, structural, neighbour, orders, settings).item() == pytest.approx(expected)


def test_upper_bound_sends_no_gradient_to_the_positive():
    settings = SUGRLSettings(structural=0.0, neighbour=0.0, margin=0.0, slack=0.0, negatives=1)
    anchor, structural = 10 * draw(8, 4), draw(8, 4, seed=1)
    structural.requires_grad_(), anchor.requires_grad_()
    loss = margin_loss(anchor, structural, structural, [torch.arange(8).roll(1)], settings)
    loss.backward()
    assert loss > 0 and anchor.grad.any()
    assert not structural.grad.any()


@law
@given(graphs())
def test_neighbours_are_drawn_from_the_node_and_its_neighbours(graph):
    drawn = draw_neighbours(make_operator(graph), generator(0)).numpy()
    allowed = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    assert (np.take_along_axis(allowed, drawn, axis=1) > 0).all()


def test_every_neighbour_is_drawn_equally_often():
    star = build_graph(np.stack([np.zeros(3, int), np.arange(1, 4)]), np.ones((4, 1)))
    operator = make_operator(star)
    drawn = torch.cat([draw_neighbours(operator, generator(number))[0] for number in range(400)])
    share = torch.bincount(drawn, minlength=4) / len(drawn)
    torch.testing.assert_close(share, torch.full((4,), 0.25), atol=0.03, rtol=0)


def test_embedding_has_rows_of_length_one():
    graph = build_graph(np.array([[0, 1, 2], [1, 2, 3]]), np.eye(5))
    embedding = fit(graph, SUGRLSettings(hidden=8, embedding=3, epochs=3)).embedding
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics"])
def test_cpu_preset_changes_the_number_of_epochs_only(dataset):
    paper, cpu = (METHOD.settings_for(preset, dataset) for preset in ("paper", "cpu"))
    assert cpu.epochs <= paper.epochs
    assert cpu == paper.replace(epochs=cpu.epochs)
