"""Link prediction: hide edges, train without them, and ask the codes which pairs of nodes were linked."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from spikegcl import floors
from spikegcl.bits import linear, popcount
from spikegcl.datasets import make_split
from spikegcl.errors import GraphError
from spikegcl.graph import Split, sorted_unique
from spikegcl.probes import linear_probe
from spikegcl.structural import structural_features
from spikegcl.training import train

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.config import Config
    from spikegcl.graph import Graph

    Packed = NDArray[np.uint8]
    Integers = NDArray[np.int64]

log = logging.getLogger("spikegcl")

# Shares of the undirected edges: those of the link prediction examples of PyG.
TEST_SHARE, VAL_SHARE = 0.10, 0.05
# Training edges the regression is fitted on, and as many non-edges: far more pairs than it has weights, and the
# memory for them stays bounded on large graphs.
FITTED_ON = 50_000
FEWEST = 20


@dataclass(frozen=True, eq=False)
class Pairs:
    """Equally many linked and unlinked pairs of nodes, each int64, E x 2, smaller index first."""

    edges: Integers
    non_edges: Integers

    @property
    def both(self) -> Integers:
        """2E x 2: the edges, then the non-edges."""
        return np.concatenate([self.edges, self.non_edges])

    @property
    def linked(self) -> Integers:
        """2E: 1 for the edges, then 0 for the non-edges."""
        return np.repeat([1, 0], len(self.edges))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """``graph`` has lost the edges of ``val`` and ``test``; those of ``train`` are (a sample of) its own.

    No non-edge is an edge of the full graph, and none occurs twice, neither in one part nor in two.
    """

    graph: Graph
    train: Pairs
    val: Pairs
    test: Pairs


@dataclass(frozen=True)
class Ranking:
    """How well a score puts edges before non-edges: area under the ROC curve, and average precision."""

    auc: float
    ap: float


@dataclass(frozen=True)
class LinkScores:
    """``hamming`` ranks by the number of equal bits alone, ``logreg`` by a learned weight for each bit that is equal.

    With equally many edges and non-edges, a score that knows nothing has 0.5 in both measures.
    """

    hamming: Ranking
    logreg: Ranking


@dataclass(frozen=True)
class LinkResult:
    """Scores of the trained codes, and of the floors at the same bits, by name."""

    test_edges: int
    val_edges: int
    trained: LinkScores
    floors: dict[str, LinkScores]


def link_prediction(graph: Graph, config: Config, *, seed: int = 0, with_floors: bool = True) -> LinkResult:
    """Hold out 15 % of the edges, train SpikeGCL on the others alone, rank held-out edges among non-edges.

    ``seed`` draws the edges, the non-edges and the initial weights. Structural features see none of the held-out edges
    if ``graph`` comes without features, for they are then made from the remaining edges. Labels are looked at only
    if ``config`` selects or stops by validation accuracy. A threshold that is given (a run's config has its calibrated
    one) is kept; 0 calibrates it on the remaining edges.
    """
    held_out = hold_out(graph, seed)
    remaining = held_out.graph if graph.features is not None else structural_features(held_out.graph)
    judged = "validation" in (config.select, config.stop)
    split = make_split(remaining, seed) if judged and remaining.labels is not None else None
    trained = train(remaining, config, seed=seed, split=split)
    bits = trained.model.bits
    unlearned = floors.below(remaining, config, bits, seed, trained.model.inputs) if with_floors else {}
    return LinkResult(
        test_edges=len(held_out.test.edges),
        val_edges=len(held_out.val.edges),
        trained=score_links(trained.codes, held_out, bits=bits),
        floors={name: score_links(codes, held_out, bits=bits) for name, codes in unlearned.items()},
    )


def hold_out(graph: Graph, seed: int = 0) -> HeldOut:
    """Take a random 10 % of the undirected edges for test and 5 % for validation out of ``graph``; add non-edges."""
    edges = _edge_keys(graph)
    if len(edges) < FEWEST:
        raise GraphError(f"link prediction holds out edges and needs {FEWEST} at least; {graph.name} has {len(edges)}")
    rng = np.random.default_rng(seed)
    test, val, train = np.split(
        rng.permutation(edges), np.cumsum([round(TEST_SHARE * len(edges)), round(VAL_SHARE * len(edges))])
    )
    remaining = _without(graph, np.concatenate([test, val]))
    parts = (train[:FITTED_ON], val, test)
    non_edges = np.split(
        _draw_non_edges(graph, edges, sum(map(len, parts)), rng), np.cumsum([len(part) for part in parts])[:-1]
    )
    alone = int(((graph.degrees > 0) & (remaining.degrees == 0)).sum())
    log.info(
        "link prediction: %d edges held out for test, %d for validation, %d remain; %d nodes lose their last edge",
        len(test), len(val), len(train), alone,
    )  # fmt: skip
    return HeldOut(
        remaining, *(Pairs(_nodes(a, graph), _nodes(b, graph)) for a, b in zip(parts, non_edges, strict=True))
    )


def score_links(packed: Packed, held_out: HeldOut, *, bits: int) -> LinkScores:
    """Rank the test pairs by their codes: uint8, N x ceil(bits / 8).

    A pair is described by the bits in which its two codes agree (XNOR). Their number is bits minus the Hamming
    distance; a logistic regression on them, fitted on training pairs with its strength chosen on validation pairs,
    gives each its own weight, so that the Hamming distance is the special case of equal weights.
    """
    parts = (held_out.train, held_out.val, held_out.test)
    rows = np.concatenate([_agreement(packed, part.both, bits) for part in parts])
    linked = np.concatenate([part.linked for part in parts])
    train, val, test = np.split(np.arange(len(rows)), np.cumsum([len(part.linked) for part in parts])[:-1])
    fitted = linear_probe(rows, linked, Split(train, val, test), kind="logreg", bits=bits)
    weight = fitted.weight[:, 1:] - fitted.weight[:, :1]
    return LinkScores(
        hamming=_rank(popcount(rows[test]), linked[test]),
        logreg=_rank(linear(rows[test], weight)[:, 0], linked[test]),
    )


def _rank(scores: NDArray[np.int32] | NDArray[np.float32], linked: Integers) -> Ranking:
    from sklearn.metrics import average_precision_score, roc_auc_score

    return Ranking(float(roc_auc_score(linked, scores)), float(average_precision_score(linked, scores)))


def _agreement(packed: Packed, pairs: Integers, bits: int) -> Packed:
    """The bits in which the codes of each pair agree: N x bytes, E x 2 -> E x bytes, zero padded."""
    same = ~(packed[pairs[:, 0]] ^ packed[pairs[:, 1]])
    if bits % 8:
        same[:, -1] &= np.uint8((1 << bits % 8) - 1)
    return same


def _edge_keys(graph: Graph) -> Integers:
    """Every undirected edge once as low * N + high, ascending."""
    source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    once = source < graph.indices
    return source[once] * graph.num_nodes + graph.indices[once]


def _nodes(keys: Integers, graph: Graph) -> Integers:
    return np.stack(np.divmod(keys, graph.num_nodes), axis=1)


def _without(graph: Graph, keys: Integers) -> Graph:
    """The graph without these edges, everything else as it was."""
    source = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    low, high = np.minimum(source, graph.indices), np.maximum(source, graph.indices)
    kept = ~np.isin(low * graph.num_nodes + high, keys)
    return replace(
        graph,
        indptr=np.concatenate([[0], np.cumsum(kept)])[graph.indptr],
        indices=graph.indices[kept],
        weights=None if graph.weights is None else graph.weights[kept],
    )


def _draw_non_edges(graph: Graph, edges: Integers, count: int, rng: np.random.Generator) -> Integers:
    """``count`` different pairs of different nodes, none of them an edge, in random order."""
    nodes = graph.num_nodes
    room = nodes * (nodes - 1) // 2 - len(edges)
    # Drawing without repeats takes ever longer as pairs run out.
    if 2 * count > room:
        raise GraphError(
            f"{graph.name} is too dense for link prediction: {count} non-edges are needed and there are {room}; "
            "at most half of them can be drawn"
        )
    found = np.empty(0, np.int64)
    while (missing := count - len(found)) > 0:
        pair = np.sort(rng.integers(0, nodes, (missing + missing // 10 + 16, 2)), axis=1)
        keys = (pair[:, 0] * nodes + pair[:, 1])[pair[:, 0] < pair[:, 1]]
        found = sorted_unique(np.concatenate([found, keys[~np.isin(keys, edges)]]))
    return rng.permutation(found)[:count]
