"""Hypothesis strategies: small graphs with isolated nodes, stars and separate components."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from spikegcl.graph import build_graph


@st.composite
def graphs(draw, min_nodes=2, max_nodes=12, min_features=1, max_features=9, sparse=None, weighted=False):
    count = draw(st.integers(min_nodes, max_nodes))
    width = draw(st.integers(min_features, max_features))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from(["random", "star", "components", "isolated"]))
    if shape == "star":
        edges = np.stack([np.zeros(count - 1, int), np.arange(1, count)])
    elif shape == "isolated":
        edges = np.zeros((2, 0), int)
    else:
        edges = rng.integers(0, count, (2, draw(st.integers(1, 3 * count))))
        if shape == "components":
            edges = edges[:, (edges[0] < count // 2) == (edges[1] < count // 2)]
    density = {None: draw(st.sampled_from([0.15, 0.9])), True: 0.1, False: 0.95}[sparse]
    features = rng.standard_normal((count, width)) * (rng.random((count, width)) < density)
    weights = rng.random(edges.shape[1]).astype(np.float32) + 0.1 if weighted else None
    return build_graph(edges, features.astype(np.float32), num_nodes=count, weights=weights)
