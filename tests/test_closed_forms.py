"""Closed forms: each stage against a formula of a few lines, and what holds for nodes that were not there."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl import components
from spikegcl.baselines import Shape, find_method
from spikegcl.baselines.closed_form import fit_closed_form, settle
from spikegcl.bits import unpack
from spikegcl.closed_forms import fit_itq, fit_medians, gaussian_rotation, read_back
from spikegcl.components import PPR, Propagation, fit_components
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from spikegcl.propagate import make_operator
from spikegcl.scaling import FEW, Centred, choose_scaling, fit_scaling, unit_rows
from strategies import graphs

law = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def words():
    return load_dataset("sbm:nodes=300,classes=3,num_features=120,active=8")


@pytest.fixture(scope="module")
def pixels():
    return load_dataset("digits")


def normalised(graph):
    matrix = graph.adjacency.toarray() + np.eye(graph.num_nodes)
    root = matrix.sum(1) ** -0.5
    return root[:, None] * matrix * root


def dense(features):
    return features.toarray() if sp.issparse(features) else features


def scaled(features):
    """The centred and scaled features as a dense matrix."""
    return fit_scaling(features).apply(features).columns(0, features.shape[1])


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


# ----------------------------------------------------------------------------------------------------------- scaling


def test_words_are_weighted_by_idf_and_have_unit_rows(words):
    x = dense(words.features)
    x = unit(x * np.maximum(0, np.log(300 / ((x != 0).sum(0) + 1))))
    x = x - x.mean(0)
    np.testing.assert_allclose(scaled(words.features), x / np.sqrt((x**2).mean()), atol=1e-5)


def test_real_features_are_standardised_and_constant_columns_vanish(pixels):
    found = scaled(pixels.features)
    varies = pixels.features.std(0) > 0
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(0), varies, atol=1e-4)


def test_scaling_of_new_rows_is_that_of_the_fitted_ones(words):
    scaling = fit_scaling(words.features)
    some = scaling.apply(words.features[:7]).columns(0, 120)
    np.testing.assert_array_equal(some, scaling.apply(words.features).columns(0, 120)[:7])


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (np.array([[0, 1], [1, 1]], np.float32), "words"),
        (np.array([[0, 2], [1, 1]], np.float32), "standard"),
        (sp.csr_array(np.array([[0, -0.3, 0, 0]], np.float32)), "standard"),
        (sp.csr_array(np.array([[0, 0, 0, 0]], np.float32)), "words"),
        (sp.csr_array(np.array([[0, 3, 1, 0], [0, 0, 0, 1]], np.float32)), "words"),  # counts
        (sp.csr_array(np.array([[0, 0.3, 0.3, 0], [0, 0, 0, 0], [1, 0, 0, 0]], np.float32)), "words"),  # normalised
        (sp.csr_array(np.array([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0.3, 0.2, 0]], np.float32)), "weighted"),
    ],
)
def test_features_are_recognised_by_what_they_hold(features, expected):
    wide = sp.hstack([features] * FEW, format="csr") if sp.issparse(features) else np.tile(features, FEW)
    assert choose_scaling(wide) == expected
    assert choose_scaling(features) == "standard"


def test_words_with_weights_of_their_own_get_square_roots_and_no_others(words):
    rng = np.random.default_rng(0)
    features = words.features.copy()
    features.data = rng.uniform(0.1, 2, len(features.data)).astype(np.float32)
    x = unit(np.sqrt(dense(features)))
    x = x - x.mean(0)
    np.testing.assert_allclose(scaled(features), x / np.sqrt((x**2).mean()), atol=1e-5)
    new = sp.csr_array(np.full((1, 120), -0.5, np.float32))
    assert np.isfinite(fit_scaling(features).apply(new).columns(0, 120)).all()


@law
@given(graphs(min_features=2), st.integers(1, 4))
def test_centred_rows_multiply_like_their_dense_matrix(graph, width):
    rng = np.random.default_rng(0)
    offset = rng.standard_normal(graph.num_features).astype(np.float32)
    matrix, whole = Centred(graph.features, offset), dense(graph.features) - offset
    weight = rng.standard_normal((graph.num_features, width)).astype(np.float32)
    values = rng.standard_normal((graph.num_nodes, width)).astype(np.float32)
    np.testing.assert_allclose(matrix.times(weight), whole @ weight, atol=1e-4)
    np.testing.assert_allclose(matrix.transposed_times(values), whole.T @ values, atol=1e-4)


# ------------------------------------------------------------------------------------- propagation and components


@law
@given(graphs())
def test_propagation_is_the_recursion(graph):
    x = dense(graph.features)
    z = x
    for _ in range(10):
        z = 0.85 * normalised(graph) @ z + 0.15 * x
    np.testing.assert_allclose(PPR.apply(make_operator(graph), x), z, atol=1e-4)
    np.testing.assert_allclose(
        Propagation(2, 0.0).apply(make_operator(graph), x), normalised(graph) @ normalised(graph) @ x, atol=1e-4
    )


@pytest.mark.parametrize("where", ["dense", "operator", "sketched lengths"])
def test_components_are_those_of_the_dense_recipe(words, where, monkeypatch):
    monkeypatch.setattr(components, "POWER_ITERATIONS", 100)  # the spectrum of so small a graph hardly falls
    if where != "dense":
        monkeypatch.setattr(components, "DENSE_BYTES", 0)
    if where == "sketched lengths":
        monkeypatch.setattr(components, "EXACT_COLUMNS", 0)
        monkeypatch.setattr(components, "SKETCH", 20000)
    x = scaled(words.features)
    z = x
    for _ in range(10):
        z = 0.85 * normalised(words) @ z + 0.15 * x
    z = unit(z) - unit(z).mean(0)
    y = unit(z @ np.linalg.svd(z)[2][:6].T)
    y = y - y.mean(0)
    y = y / np.sqrt((y**2).mean())
    found = fit_components(words, 6)[1]
    found *= np.sign((found * y).sum(0))  # a component has no sign
    # With a sketch the lengths are right to a percent or two.
    assert np.abs(found - y).mean() < (0.05 if where == "sketched lengths" else 0.005)


def test_components_are_limited_by_columns_and_nodes(words, pixels):
    assert fit_components(pixels, 500)[0].directions.shape == (64, 64)
    assert fit_components(words.subgraph(np.arange(30)), 500)[0].directions.shape == (120, 29)


def test_scores_of_old_nodes_stay_when_others_arrive_elsewhere(words):
    """Nodes without an edge to them: everything that was fitted is frozen."""
    fitted, scores = fit_components(words, 16)
    assert np.array_equal(scores, fitted.apply(words))
    more = sp.block_diag([words.adjacency, words.adjacency[:40][:, :40]])
    grown = build_graph(more, sp.vstack([words.features, words.features[:40]]))
    np.testing.assert_allclose(fitted.apply(grown)[:300], fitted.apply(words), atol=1e-4)


# --------------------------------------------------------------------------------------------------- rotation, bits


@pytest.mark.parametrize("bits", [20, 64, 130])
def test_itq_stacks_rotations_that_bring_scores_closer_to_signs(bits):
    rng = np.random.default_rng(0)
    scores = (rng.standard_normal((500, 64)) * np.linspace(2, 0.1, 64)).astype(np.float32)
    width = min(bits, 64)

    def error(rotation):
        values = scores[:, :width] @ rotation
        return np.square(np.where(values > 0, 1, -1) - values).mean()

    found, start = (fit_itq(scores, bits, iterations=rounds).directions for rounds in (25, 0))
    assert found.shape == (width, bits)
    for first in range(0, bits - width + 1, width):
        block = slice(first, first + width)
        np.testing.assert_allclose(found[:, block].T @ found[:, block], np.eye(width), atol=1e-4)
        assert error(found[:, block]) < 0.99 * error(start[:, block])


def test_rotations_of_several_sizes_take_turns():
    scores = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    found = fit_itq(scores, 50, blocks=(16, 8, 32), iterations=3).directions
    starts = [(0, 16), (16, 8), (24, 26)]  # the last has the bits that are left
    for first, width in starts:
        block = found[:, first : first + width]
        np.testing.assert_allclose(block.T @ block, np.eye(width), atol=1e-4)
        assert not block[width:].any()


def test_more_of_the_scores_can_be_read_back_where_there_are_clusters():
    """What a linear map of the bits leaves of the scores, on nodes that nothing was fitted on."""
    rng = np.random.default_rng(0)
    centres, noise = rng.standard_normal((30, 24)), rng.standard_normal((4000, 24))
    scores = (centres[rng.integers(30, size=4000)] + 0.3 * noise) * np.linspace(3, 0.3, 24)
    fitted, fresh = np.split(scores.astype(np.float32), 2)

    def error(directions):
        bits = [np.where(part @ directions > np.median(fitted @ directions, 0), 1, -1) for part in (fitted, fresh)]
        return np.square(fresh - bits[1] @ np.linalg.lstsq(bits[0], fitted, rcond=None)[0]).sum()

    rotation = fit_itq(fitted, 24).directions
    assert error(read_back(fitted, rotation)) < 0.95 * error(rotation)


@pytest.mark.parametrize("scores", [np.zeros((5, 9)), np.eye(9), np.ones((1, 9)), np.repeat(np.eye(3), 3, axis=1)])
def test_scores_without_content_are_read_back_by_finite_directions(scores):
    assert np.isfinite(fit_itq(scores.astype(np.float32), 20, reads_back=True).directions).all()


def test_medians_give_every_bit_to_half_of_the_nodes():
    values = np.random.default_rng(0).standard_normal((100, 12)).astype(np.float32)
    assert (unpack(fit_medians(values).apply(values), 12).sum(0) == 50).all()


def test_gaussian_directions_depend_on_the_seed_alone():
    first, again, other = (gaussian_rotation(8, 5, seed).directions for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@law
@given(graphs())
def test_unit_rows_agree_for_dense_and_sparse(graph):
    rows = dense(graph.features)
    np.testing.assert_allclose(dense(unit_rows(sp.csr_array(rows))), unit_rows(rows), atol=1e-6)


@pytest.mark.parametrize("name", ["pca-projection", "itq", "ppr-itq"])
def test_parameters_are_the_numbers_that_are_kept(words, name):
    method = find_method(name)
    settled = settle(Shape.of(words), method.settings().replace(bits=100))
    kept = fit_closed_form(words, settled, 0)
    arrays = [*kept.components.arrays().values(), kept.rotation.directions, kept.medians.thresholds]
    scales = 2  # of the features and of the scores
    assert method.parameters(Shape.of(words), settled) == sum(array.size for array in arrays) + scales


def test_a_sparse_table_with_columns_that_all_rows_have_is_no_text():
    rng = np.random.default_rng(0)
    categories = np.eye(12, dtype=np.float32)[rng.integers(0, 12, (100, 4))].reshape(100, 48)
    incomes = np.exp(rng.standard_normal((100, 2))).astype(np.float32)
    assert choose_scaling(sp.csr_array(categories)) == "words"
    assert choose_scaling(sp.csr_array(np.hstack([categories, incomes]))) == "standard"
