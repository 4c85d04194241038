"""Fitting components block by block: the same numbers wherever arrays are kept, and nothing large in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl import closed_forms, components, neurons, session, streaming
from spikegcl.config import preset
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from spikegcl.propagate import make_operator, propagate
from spikegcl.session import Session
from spikegcl.sources import fit_sources
from spikegcl.streaming import (
    Drop,
    StreamedOperator,
    column_sums,
    column_variances,
    likeness,
    orthonormalise,
    row_blocks,
    square_lengths,
)
from spikegcl.training import embed_graph, train
from strategies import graphs

COMPACT = preset("compact", "").replace(bits=64)


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks of at most 64 rows, and no graph or matrix so small that it is taken as a whole."""
    make_large(monkeypatch, 64)


def make_large(monkeypatch, rows):
    for module, name, value in (
        (streaming, "ROWS", rows), (session, "ROWS", rows), (closed_forms, "FIT_NODES", rows),
        (components, "DENSE_BYTES", 0), (neurons, "SELECTED", rows),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@given(count=st.integers(1, 500), blocks=st.integers(1, 7))
def test_blocks_are_all_rows_once(count, blocks):
    for found in (row_blocks(count), row_blocks(count, blocks)):
        assert np.array_equal(np.concatenate([np.arange(count)[block] for block in found]), np.arange(count))


def test_sums_over_rows_are_numpys(short_blocks):
    values = np.random.default_rng(0).standard_normal((300, 5), dtype=np.float32)
    np.testing.assert_allclose(column_sums(values), values.sum(0), atol=1e-4)
    np.testing.assert_allclose(column_variances(values), values.var(0), rtol=1e-5)
    np.testing.assert_allclose(square_lengths(values), (values**2).sum(1), rtol=1e-5)


@pytest.mark.parametrize("rank", [8, 3], ids=["full rank", "dependent columns"])
def test_orthonormalised_columns_span_what_they_did(rank, short_blocks):
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((300, rank)) @ rng.standard_normal((rank, 8))).astype(np.float32)
    basis = values.copy()
    orthonormalise(basis)
    np.testing.assert_allclose(basis.T @ basis, np.eye(8), atol=1e-5)
    np.testing.assert_allclose(basis @ (basis.T @ values), values, atol=1e-4)


@given(graph=graphs(weighted=True))
@settings(max_examples=25, deadline=None)
def test_likeness_is_a_sum_over_the_edges(graph):
    values = np.random.default_rng(0).standard_normal((graph.num_nodes, 3), dtype=np.float32)
    total, squares = likeness(graph, values)
    shares = graph.adjacency.toarray() / max(1e-30, graph.adjacency.data.max(initial=0))
    assert total == pytest.approx(float((shares * (values @ values.T)).sum()), 1e-4, 1e-5)
    assert squares == pytest.approx(float((shares**2).sum()), 1e-4)


def test_hidden_edges_are_those_that_an_operator_loses(short_blocks):
    graph, drop = load_dataset("sbm:nodes=300,classes=4"), Drop(0.3, 5)
    kept = make_operator(graph).drop_edges(*drop)
    lost = graph.adjacency.toarray()
    lost[kept.rows, kept.indices.long()] *= (kept.weights == 0).numpy()
    assert 0.2 < lost.sum() / graph.num_edges < 0.4
    values = np.random.default_rng(0).standard_normal((graph.num_nodes, 3), dtype=np.float32)
    total, squares = likeness(graph, values, drop)
    assert total == pytest.approx(float((lost * (values @ values.T)).sum()), 1e-4)
    assert squares == lost.sum()
    streamed = StreamedOperator(graph, 4).drop_edges(*drop).step(values, values, 0.0)
    assert np.array_equal(streamed, propagate(kept, torch.from_numpy(values)).numpy())


@pytest.mark.parametrize(
    "features",
    ["num_features=24", "num_features=120,active=8", "num_features=24,homophily=0.0", "degree=12,homophily=0.9"],
    ids=["kept", "only multiplied", "not propagated", "with structure"],
)
@pytest.mark.parametrize("sketched", [False, True], ids=["", "sketched lengths"])
def test_components_by_blocks_are_those_of_one_piece(features, sketched, short_blocks, monkeypatch):
    if sketched:
        monkeypatch.setattr(components, "EXACT_COLUMNS", 0)
    graph, structure = load_dataset(f"sbm:nodes=300,classes=4,{features}"), features.startswith("degree")
    if structure:
        graph = graph.with_features(np.random.default_rng(0).standard_normal((300, 2), dtype=np.float32))
    whole, scores = fit_sources(graph, 40, components=20)
    assert whole.read_structure == structure
    fitted, streamed = fit_sources(graph, 40, components=20, blocks=3)
    for name, array in whole.arrays().items():
        assert np.array_equal(fitted.arrays()[name], array), name
    assert fitted.constants() == whole.constants()
    assert np.array_equal(streamed, scores)


@pytest.mark.parametrize("settings", [{}, {"tau": 2.0}, {"epochs": 2}], ids=["default", "memory", "trained"])
def test_a_model_fitted_by_parts_is_the_one_of_one_piece(settings, short_blocks):
    graph = load_dataset("sbm:nodes=300,classes=4,num_features=24")
    whole, parts = (train(graph, COMPACT.replace(parts=count, **settings), seed=0) for count in (1, 5))
    for name, value in whole.model.state_dict().items():
        assert np.array_equal(parts.model.state_dict()[name], value), name
    assert np.array_equal(parts.codes, whole.codes)
    assert np.array_equal(embed_graph(parts.model, graph), whole.codes)


def test_fitting_by_blocks_has_no_array_of_all_nodes_in_memory(monkeypatch):
    make_large(monkeypatch, 2**11)
    nodes, width = 40_000, 64
    rng = np.random.default_rng(0)
    edges = np.stack([np.arange(nodes), (np.arange(nodes) + rng.integers(1, 50, nodes)) % nodes])
    graph = build_graph(edges, rng.standard_normal((nodes, width), dtype=np.float32))
    peaks = []
    for parts in (1, 20):
        tracemalloc.start()
        Session(graph, COMPACT.replace(parts=parts), 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 4 * nodes * width < peaks[0]
