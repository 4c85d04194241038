"""What the bits of a code read: features as they are, propagated, or the edges alone; and how a graph decides it.

Whether neighbours' features are alike says whether propagation helps them. Whether something else knows more about the
graph is asked of hidden edges: a fifth of them is left out, and what is computed without them is compared over them.
Where many hops of weak features, or a sketch of the structure, tell the hidden edges much better than that, half of the
bits read it and the other half the features. Nothing looks at labels. docs/compact.md has what this is worth.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import noise
from spikegcl.components import (
    CONSTANT,
    FAR,
    OWN,
    PPR,
    Components,
    Propagation,
    component_count,
    fit_components,
    scaled_rows,
)
from spikegcl.graph import features_of
from spikegcl.propagate import make_operator
from spikegcl.scaling import fit_scaling, inverse_of
from spikegcl.streaming import (
    Drop,
    StreamedOperator,
    arrays_for,
    column_variances,
    copy_columns,
    likeness,
    row_blocks,
    square_lengths,
    strengths,
)
from spikegcl.structural import is_structural, sketch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.graph import Graph

    Floats = NDArray[np.float32]

SMOOTH = Propagation(5, 0.0)  # what many neighbours say together, for features that each say little
PROPAGATIONS = {"pagerank": PPR, "hops": Propagation(2, 0.0), "none": OWN}  # what can be asked for by name

DIRECTIONS = 128  # random directions in which features are compared
TRAVELLING = 64  # of these, and as many columns of a sketch, are propagated: twice as many decide alike
CHANCE = 2.0  # standard deviations by which neighbours must be more alike than the ends of random edges
HIDDEN = 0.2  # share of the edges that are hidden
CLEARLY = 1.4  # times as many deviations, and no less than LEAST, are a reason to give half of the bits
LEAST = 4.0  # (python -m benchmarks.sources)
LINKED = 0.5  # share of the nodes that must have edges: the others have no place in the structure


@dataclass(frozen=True)
class Source:
    """What some of the bits read: the features or, if ``structural``, a sketch of the edges; and how far it travels."""

    propagation: Propagation
    structural: bool = False


@dataclass(frozen=True, eq=False)
class Sources:
    """Components of one source or two, side by side, each read by its share of the bits.

    ``num_features`` are the feature columns of the graphs they read.
    """

    parts: tuple[Components, ...]
    num_features: int

    @property
    def read_structure(self) -> bool:
        """Whether some bits are a function of the node ids, from which sketches are made."""
        return any(part.structural for part in self.parts)

    def apply(self, graph: Graph, blocks: int | None = None) -> Floats:
        """Scores of every node, N x k of all parts; with ``blocks`` as :func:`components.propagated` has it."""
        return _side_by_side([part.apply(graph, blocks) for part in self.parts], blocks)

    def shares(self, bits: int) -> list[tuple[Components, slice, int]]:
        """Every part, its columns of the scores, and how many of the bits read it."""
        ends = np.cumsum([0, *(part.directions.shape[1] for part in self.parts)]).tolist()
        columns = [slice(*pair) for pair in itertools.pairwise(ends)]
        return list(zip(self.parts, columns, _shares(bits, len(self.parts)), strict=True))

    def describe(self, *, asked: bool = False) -> tuple[str, ...]:
        """What was chosen for this graph, and why, one sentence each; ``asked`` if settings chose the propagation."""
        clear, base = self.parts[0], self.parts[-1]
        if clear.structural:
            half = "the structure of this graph, a sketch of its edges, which tells hidden ones much better"
        else:
            half = f"features after {clear.propagation.hops} hops, which tell hidden edges much better"
        half = f"{half} ({clear.directions.shape[1]} components)"
        if len(self.parts) == 2:
            return (*base.describe(), f"half of the bits: {half}")
        return (f"all bits: {half}",) if clear.structural else base.describe(asked=asked)

    def arrays(self) -> dict[str, Floats]:
        """What a file has to keep, beside :meth:`constants`; :meth:`restore` is the way back."""
        parts = enumerate(self.parts)
        return {f"{number}.{name}": array for number, part in parts for name, array in part.arrays().items()}

    def constants(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "parts": [part.constants() for part in self.parts]}

    @classmethod
    def restore(cls, arrays: dict[str, Floats], constants: dict[str, Any]) -> Sources:
        parts = []
        for number, values in enumerate(constants["parts"]):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            parts.append(Components.restore(own, values))
        return cls(tuple(parts), constants["num_features"])


def fit_sources(
    graph: Graph,
    bits: int,
    *,
    components: int = 0,
    propagation: Propagation | None = None,
    seed: int = 0,
    blocks: int | None = None,
) -> tuple[Sources, Floats]:
    """Components for ``bits`` bits of what the graph (or ``propagation``) decides, and the scores of its nodes.

    Every source has as many ``components``; 0: as many as suit its bits (:func:`component_count`).
    """
    chosen = (Source(propagation),) if propagation else choose_sources(graph, blocks)[:bits]
    fitted = [
        fit_components(
            graph, components or component_count(share), propagation=source.propagation, structural=source.structural,
            seed=seed, blocks=blocks,
        )
        for source, share in zip(chosen, _shares(bits, len(chosen)), strict=True)
    ]  # fmt: skip
    sources = Sources(tuple(part for part, _ in fitted), graph.num_features)
    return sources, _side_by_side([scores for _, scores in fitted], blocks)


def choose_sources(graph: Graph, blocks: int | None = None) -> tuple[Source, ...]:
    """What the bits read; of two sources the first tells hidden edges much better.

    Features are propagated if those of neighbours are more alike than those of nodes drawn at random. Features that are
    the same everywhere get no bits beside something better. The structural columns of a graph without features are made
    from neighbours and go far.
    """
    if is_structural(graph):
        return (Source(FAR),)
    features = scaled_rows(graph, fit_scaling(features_of(graph)), blocks)
    rng = np.random.default_rng(noise.derive("likeness", features.shape[1]))
    own = features.times(rng.standard_normal((features.shape[1], DIRECTIONS), dtype=np.float32))
    base = Source(PPR if deviations(graph, own, blocks=blocks) > CHANCE else OWN)
    if np.count_nonzero(graph.degrees) < LINKED * graph.num_nodes:
        return (base,)
    told = ask(graph, base, own, blocks)
    best = base
    for source, found in told.items():
        if source != base and found > max(CLEARLY * told[best], LEAST):
            best = source
    if best == base:
        return (base,)
    return (best, base) if column_variances(own).max() > CONSTANT else (best,)


def ask(graph: Graph, base: Source, own: Floats, blocks: int | None = None) -> dict[Source, float]:
    """How well the ``base``, many hops of features, and a sketch of the structure tell hidden edges, in deviations.

    ``own`` are the features in random directions (N x W, the first of which are used). Structure comes last: to be
    taken in place of hops it has to tell the edges clearly better than these.
    """
    few = arrays_for(blocks)((len(own), TRAVELLING))
    copy_columns(few, own, slice(0, TRAVELLING))
    hidden = Drop(HIDDEN, noise.derive("hidden edges"))
    whole = make_operator(graph) if blocks is None else StreamedOperator(graph, blocks)
    operator, told = whole.drop_edges(*hidden), {}
    for source in (base, Source(SMOOTH), Source(FAR, structural=True)):
        start = sketch(graph, operator, TRAVELLING) if source.structural else few
        told[source] = deviations(graph, source.propagation.apply(operator, start), hidden, blocks)
    return told


def deviations(graph: Graph, values: Floats, hidden: Drop | None = None, blocks: int | None = None) -> float:
    """By how many standard deviations the rows (N x W) of neighbours are more alike than those of random edges.

    Alike: the sum over the edges of w_ij v_i . v_j, with v the rows at unit length, centred so that the ends of random
    edges (nodes drawn by the weight of their edges) have mean 0; its variance is then 2 sum w_ij^2 ||M||^2 with M the
    second moment of such an end. Over ``hidden`` edges alone, if given.
    """
    weight = strengths(graph)
    total = weight.sum()
    if not total:
        return 0.0
    pull, rows = (weight / total).astype(np.float32), row_blocks(len(values))
    given, values = values, arrays_for(blocks)((values.shape[0], values.shape[1]))
    copy_columns(values, given)
    for _ in range(2):  # lengths and means again: the one moves the other
        values *= inverse_of(np.sqrt(square_lengths(values)))[:, None]
        values -= np.asarray(sum((pull[block] @ values[block]).astype(np.float64) for block in rows), np.float32)
    moment = sum(((pull[block, None] * values[block]).T @ values[block]).astype(np.float64) for block in rows)
    found, squares = likeness(graph, values, hidden)
    chance = float(np.sqrt(2 * squares) * np.linalg.norm(moment))
    return found / chance if chance > 0 else 0.0


def _shares(bits: int, count: int) -> list[int]:
    """``bits`` for so many sources, as equal as can be; the first get more."""
    return [bits // count + (number < bits % count) for number in range(count)]


def _side_by_side(scores: list[Floats], blocks: int | None) -> Floats:
    if len(scores) == 1:
        return scores[0]
    width = sum(part.shape[1] for part in scores)
    joined, done = arrays_for(blocks)((len(scores[0]), width)), 0
    for part in scores:
        copy_columns(joined[:, done : done + part.shape[1]], part)
        done += part.shape[1]
    return joined
