"""CKA of feature groups and spikes against the definition with Gram matrices."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.groups import make_groups
from spikegcl.similarity import group_cka
from strategies import graphs


def definition(x, y):
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) of the centred Gram matrices, N x N."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, l = (centre @ matrix @ matrix.T @ centre for matrix in (x, y))  # noqa: E741
    scale = np.sqrt((k * k).sum() * (l * l).sum())
    return (k * l).sum() / scale if scale > 1e-9 else 0.0


@settings(max_examples=25, deadline=None)
@given(graphs(min_nodes=3, min_features=3), st.sampled_from(["chunk", "random"]), st.integers(0, 2**32 - 1))
def test_group_cka_is_the_ratio_of_gram_matrices(graph, grouping, seed):
    steps, channels = 3, 2
    groups = make_groups(graph, steps, grouping, seed)
    spikes = np.random.default_rng(seed).integers(0, 2, (graph.num_nodes, steps * channels)).astype(np.uint8)
    features = graph.features.toarray() if graph.is_sparse else graph.features
    columns = np.split(groups.order, groups.bounds[1:-1])
    expected = [
        [definition(features[:, group].astype(float), spikes[:, j * channels :][:, :channels]) for j in range(steps)]
        for group in columns
    ]
    np.testing.assert_allclose(group_cka(graph.features, spikes, groups), expected, atol=2e-4)
