"""BANE against the dense formulas of its paper, and laws of its descent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.baselines.bane import (
    BANESettings,
    best_basis,
    descend,
    factorise,
    fit,
    lazy_walk,
    principal_rows,
)
from spikegcl.bits import unpack
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from strategies import graphs

law = settings(deadline=None, max_examples=30)


def smoothed(graph, gamma, order):
    """(I - gamma D^-1 L)^order X by dense matrices, in the words of the paper."""
    adjacency = graph.adjacency.toarray().astype(np.float64) + np.eye(graph.num_nodes)
    degrees = np.diag(adjacency.sum(1))
    features = np.asarray(graph.features.toarray() if graph.is_sparse else graph.features, np.float64)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    step = np.eye(graph.num_nodes) - gamma * np.linalg.inv(degrees) @ (degrees - adjacency)
    return np.linalg.matrix_power(step, order) @ np.divide(
        features, length, out=np.zeros_like(features), where=length > 0
    )


@law
@given(graphs(min_nodes=4, min_features=4), st.floats(0, 1), st.integers(0, 3))
def test_rows_have_the_inner_products_of_the_best_low_rank_smoothing(graph, gamma, order):
    """S S^T is that of the truncated decomposition; singular vectors themselves are free up to rotation."""
    dense = smoothed(graph, gamma, order)
    assert np.allclose(lazy_walk(graph, gamma).sum(1), 1, atol=1e-5)
    u, values, _ = np.linalg.svd(dense, full_matrices=False)
    whole = principal_rows(graph, BANESettings(gamma=gamma, order=order, rank=min(dense.shape)), 0)
    assert np.allclose(whole @ whole.T, dense @ dense.T, atol=1e-4)
    if values[1] - values[2] > 0.05:  # else the cut is not unique
        cut = principal_rows(graph, BANESettings(gamma=gamma, order=order, rank=2), 0)
        assert cut.shape == (graph.num_nodes, 2)
        best = (u * values)[:, :2]
        assert np.allclose(cut @ cut.T, best @ best.T, atol=1e-3)


def objective(signs, rows, basis, alpha):
    return np.square(rows - signs @ basis).sum() + alpha * np.square(basis).sum()


def draw(seed, nodes=9, bits=6, rank=5):
    rng = np.random.default_rng(seed)
    signs = np.where(rng.random((nodes, bits)) < 0.5, -1, 1).astype(np.float32)
    return signs, rng.standard_normal((nodes, rank)).astype(np.float32)


@law
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_descent_is_the_column_update_of_the_paper(seed, sweeps):
    signs, rows = draw(seed)
    basis = best_basis(signs, rows, 0.1)
    direct, gram = signs.astype(np.float64), (basis @ basis.T).astype(np.float64)
    target = rows.astype(np.float64) @ basis.T
    for _ in range(sweeps):
        for k in range(signs.shape[1]):
            others = np.arange(signs.shape[1]) != k
            direct[:, k] = np.where(target[:, k] - direct[:, others] @ gram[others, k] >= 0, 1, -1)
    descend(signs, rows @ basis.T - signs @ gram.astype(np.float32), basis @ basis.T, sweeps)
    assert np.array_equal(signs, direct)


@law
@given(st.integers(0, 2**32 - 1))
def test_no_step_raises_the_objective(seed):
    alpha = 0.1
    signs, rows = draw(seed)
    value = np.inf
    for _ in range(3):
        basis = best_basis(signs, rows, alpha)
        assert np.allclose((signs.T @ signs + alpha * np.eye(len(basis))) @ basis, signs.T @ rows, atol=1e-3)
        improved = objective(signs, rows, basis, alpha)
        assert improved <= value * (1 + 1e-5)
        gram = basis @ basis.T
        descend(signs, rows @ basis.T - signs @ gram, gram, 3)
        value = objective(signs, rows, basis, alpha)
        assert value <= improved * (1 + 1e-5)


def test_exact_codes_are_found_when_there_are_some():
    """Rows that are signs times a basis with orthogonal rows have those signs as their unique best codes."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((200, 4)) < 0.5, -1, 1).astype(np.float32)
    basis = np.diag([8, 4, 2, 1]).astype(np.float32)
    found = np.ones_like(truth)
    gram = basis @ basis.T
    descend(found, truth @ basis @ basis.T - found @ gram, gram, 1)
    assert np.array_equal(found, truth)


def test_codes_follow_their_nodes():
    """The same graph with its nodes in another order gives every node the code it had."""
    graph = load_dataset("digits")
    order = np.random.default_rng(1).permutation(graph.num_nodes)
    source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    place = np.argsort(order)
    features = np.asarray(graph.features.toarray() if graph.is_sparse else graph.features)
    mixed = build_graph(np.stack([place[source], place[graph.indices]]), features[order], weights=graph.weights)
    chosen = BANESettings(rank=16)
    rows, other = principal_rows(graph, chosen, 0), principal_rows(mixed, chosen, 0)
    assert np.allclose((rows @ rows.T)[order][:, order], other @ other.T, atol=1e-3)


def test_bits_and_seed():
    graph = load_dataset("digits")
    chosen = BANESettings(bits=20, rounds=2)
    first = fit(graph, chosen, seed=1)
    assert first.bits == 20 and first.codes.shape == (graph.num_nodes, 3)
    assert first.settings.rank == min(200, graph.num_features)
    assert np.array_equal(first.codes, fit(graph, chosen, seed=1).codes)
    assert not np.array_equal(first.codes, fit(graph, chosen, seed=2).codes)
    signs = factorise(principal_rows(graph, first.settings, 1), first.settings, 1)
    assert np.array_equal(unpack(first.codes, 20) == 1, signs > 0)


def test_neither_labels_nor_a_split_are_read():
    graph = load_dataset("digits")
    chosen = BANESettings(bits=8, rounds=1, sweeps=1)
    blind = replace(graph, labels=None, split=None)
    assert np.array_equal(fit(graph, chosen).codes, fit(blind, chosen).codes)


@pytest.mark.parametrize("order", [0, 2])
def test_isolated_nodes_keep_their_features(order):
    graph = build_graph(np.array([[0], [1]]), np.eye(3, dtype=np.float32))
    assert np.allclose(principal_rows(graph, BANESettings(order=order, rank=3), 0)[2], [0, 0, 1])
