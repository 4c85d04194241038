"""Features for graphs that have none, and for codes that read the edges alone: sketches of neighbourhoods."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spikegcl.noise import GOLDEN, mix
from spikegcl.propagate import make_operator, propagate
from spikegcl.streaming import StreamedOperator, arrays_for, copy_columns, row_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.propagate import Operator

    Floats = NDArray[np.float32]

log = logging.getLogger("spikegcl")
HOPS = 3
WIDTH = 128  # structural columns


def structural_features(graph: Graph, width: int = WIDTH) -> Graph:
    """``graph`` with ``width`` structural columns as features.

    The last column is the logarithm of the degree, the others are a sketch of the neighbourhood (:func:`sketch`).
    Relabelling nothing but the order of nodes permutes the rows; a new node changes only the rows within three hops.
    """
    log.info("no features given: using %d structural columns (a sketch of 1 to %d hops and log degree)", width, HOPS)
    return with_structure(graph, width)


def with_structure(graph: Graph, width: int = WIDTH, blocks: int | None = None) -> Graph:
    """What :func:`structural_features` returns; with ``blocks`` the columns are in a temporary file (streaming.py)."""
    operator = make_operator(graph) if blocks is None else StreamedOperator(graph, blocks)
    columns = arrays_for(blocks)((graph.num_nodes, width))
    copy_columns(columns[:, :-1], sketch(graph, operator, width - 1))
    columns[:, -1] = np.log1p(graph.degrees)
    return replace(graph, features=columns, columns=tuple(_names(width)))


def sketch(graph: Graph, operator: Operator | StreamedOperator, width: int) -> Floats:
    """P R + P^2 R + P^3 R with unit rows in each term: N x ``width``.

    R has a vector of random signs for every node, a function of its id alone. Nodes with overlapping neighbourhoods get
    similar rows: a random projection of the powers of P.
    """
    new_array = arrays_for(len(operator.blocks) if isinstance(operator, StreamedOperator) else None)
    numbers = torch.arange(width) * GOLDEN
    spread, total = new_array((graph.num_nodes, width)), new_array((graph.num_nodes, width))
    for rows in row_blocks(graph.num_nodes):
        keys = torch.from_numpy(_keys(graph.ids[rows]))
        spread[rows] = (mix((keys[:, None] + numbers) & 0xFFFFFFFF) & 1).float() * 2 - 1
    for _ in range(HOPS):
        if isinstance(operator, StreamedOperator):
            spread = operator.step(spread, spread, 0.0)
        else:
            spread = propagate(operator, torch.from_numpy(spread)).numpy()
        for rows in row_blocks(graph.num_nodes):
            total[rows] += torch.nn.functional.normalize(torch.from_numpy(spread[rows])).numpy()
    return total


def is_structural(graph: Graph) -> bool:
    """Whether the features of ``graph`` were made by :func:`structural_features`."""
    return graph.columns == tuple(_names(graph.num_features))


def _names(width: int) -> list[str]:
    return [f"sketch{column}" for column in range(width - 1)] + ["log_degree"]


def _keys(ids: NDArray[Any]) -> NDArray[np.int64]:
    """A number of 32 bits for every id."""
    if ids.dtype.kind in "iu":
        low = torch.from_numpy(ids & 0xFFFFFFFF)
        high = torch.from_numpy((ids >> 32) & 0xFFFFFFFF)
        return mix(mix(low) ^ high).numpy()
    digests = (hashlib.blake2b(str(key).encode(), digest_size=4).digest() for key in ids)
    return np.frombuffer(b"".join(digests), "<u4").astype(np.int64)
