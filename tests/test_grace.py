"""GRACE: the blockwise loss against the formula, sampling, settings and printed parameter counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spikegcl import load_dataset
from spikegcl.baselines import find_method, grace

METHOD = find_method("grace")


def direct(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Both directions, written as in the paper."""
    u, v = torch.nn.functional.normalize(first), torch.nn.functional.normalize(second)

    def one_way(a: Tensor, b: Tensor) -> Tensor:
        inter, intra = (a @ b.T / temperature).exp(), (a @ a.T / temperature).exp()
        return -(inter.diag() / (inter.sum(1) + intra.sum(1) - intra.diag())).log()

    return (one_way(u, v) + one_way(v, u)).mean() / 2


def loss_and_gradients(loss, first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, ...]:
    first, second = first.clone().requires_grad_(), second.clone().requires_grad_()
    value = loss(first, second, temperature)
    return value.detach(), *torch.autograd.grad(value, (first, second))


def draw(nodes: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, nodes, width, generator=rng, dtype=torch.float64).unbind()


@settings(deadline=None)
@given(st.integers(1, 13), st.integers(2, 4), st.integers(1, 8), st.floats(0.1, 2), st.integers(0, 99))
def test_loss_and_gradient_equal_the_formula_for_any_block_size(nodes, width, block, temperature, seed):
    first, second = draw(nodes, width, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grace, "BLOCK", block)
        ours = loss_and_gradients(grace.contrast_loss, first, second, temperature)
    for found, expected in zip(ours, loss_and_gradients(direct, first, second, temperature), strict=True):
        torch.testing.assert_close(found, expected)


def test_sampled_loss_is_the_exact_one_when_all_nodes_are_drawn():
    first, second = draw(11, 3, 0)
    order = torch.randperm(11)
    exact = loss_and_gradients(grace.contrast_loss, first, second, 0.4)
    sampled = loss_and_gradients(lambda u, v, t: grace.contrast_loss(u[order], v[order], t), first, second, 0.4)
    for found, expected in zip(sampled, exact, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("sample", "memory_mb", "nodes", "expected"),
    [(0, 8, 1000, 1000), (0, 8, 5000, 1024), (300, 8, 1000, 300), (300, 8, 100, 100), (4000, 8, 5000, 1024)],
)
def test_sample_is_what_was_asked_for_as_far_as_nodes_and_memory_allow(sample, memory_mb, nodes, expected):
    settled = grace.settle(grace.GRACESettings(sample=sample, memory_mb=memory_mb), nodes)
    assert settled.sample == expected
    assert 2 * settled.sample**2 * 4 <= memory_mb * 2**20


def test_row_says_whether_the_loss_was_exact_and_embeddings_have_length_one():
    graph, small = load_dataset("digits"), grace.GRACESettings(hidden=8, projection=8, epochs=1)
    exact, sampled = (grace.fit(graph, small.replace(sample=sample), seed=0) for sample in (0, 100))
    assert exact.notes == ("exact loss",) and exact.settings.sample == graph.num_nodes
    assert sampled.notes == (f"sampled negatives: 100 of {graph.num_nodes} nodes, drawn every epoch",)
    assert exact.history[0].loss > sampled.history[0].loss  # log of the number of negatives
    np.testing.assert_allclose(np.linalg.norm(exact.embedding, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics"])
def test_cpu_preset_changes_the_budget_and_not_the_model(dataset):
    paper, cpu = (dataclasses.asdict(METHOD.settings_for(name, dataset)) for name in ("paper", "cpu"))
    changed = {name for name in paper if paper[name] != cpu[name]}
    assert changed <= {"epochs", "sample", "lr"}
