"""Features for graphs that have none: a sketch of each node's neighbourhood."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from spikegcl.noise import GOLDEN, mix
from spikegcl.propagate import make_operator, propagate
from spikegcl.streaming import row_blocks

if TYPE_CHECKING:
    from spikegcl.graph import Graph

log = logging.getLogger("spikegcl")
HOPS = 3


def structural_features(graph: Graph, width: int = 128) -> Graph:
    """``graph`` with ``width`` structural columns as features.

    Every node gets a vector of random signs that is a function of its id alone. Column-wise, these are spread over one
    to three hops by the normalised adjacency P, P R + P^2 R + P^3 R with unit rows in each term, and the logarithm of
    the degree is the last column. Nodes with overlapping neighbourhoods get similar rows (a random projection of the
    adjacency powers), relabelling nothing but the order of nodes permutes the rows, and a new node changes only the
    rows within three hops.
    """
    log.info("no features given: using %d structural columns (a sketch of 1 to %d hops and log degree)", width, HOPS)
    keys = torch.from_numpy(_id_keys(graph))
    columns = torch.arange(width - 1)
    sketch = torch.empty(graph.num_nodes, width - 1)
    for rows in row_blocks(graph.num_nodes):
        sketch[rows] = (mix((keys[rows, None] + columns * GOLDEN) & 0xFFFFFFFF) & 1).float() * 2 - 1
    operator = make_operator(graph)
    total = torch.zeros_like(sketch)
    for _ in range(HOPS):
        sketch = propagate(operator, sketch)
        total += torch.nn.functional.normalize(sketch)
    degree = torch.from_numpy(np.log1p(graph.degrees).astype(np.float32))
    return graph.with_features(torch.cat([total, degree[:, None]], 1).numpy(), _names(width))


def is_structural(graph: Graph) -> bool:
    """Whether the features of ``graph`` were made by :func:`structural_features`."""
    return graph.columns == tuple(_names(graph.num_features))


def _names(width: int) -> list[str]:
    return [f"sketch{column}" for column in range(width - 1)] + ["log_degree"]


def _id_keys(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if graph.ids.dtype.kind in "iu":
        low = torch.from_numpy(graph.ids & 0xFFFFFFFF)
        high = torch.from_numpy((graph.ids >> 32) & 0xFFFFFFFF)
        return mix(mix(low) ^ high).numpy()
    digests = (hashlib.blake2b(str(key).encode(), digest_size=4).digest() for key in graph.ids)
    return np.frombuffer(b"".join(digests), "<u4").astype(np.int64)
