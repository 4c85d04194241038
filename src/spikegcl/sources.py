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
from spikegcl.components import FAR, OWN, PPR, Components, Propagation, component_count, fit_components, scaled_rows
from spikegcl.graph import features_of
from spikegcl.propagate import make_operator
from spikegcl.scaling import fit_scaling, inverse_of
from spikegcl.streaming import (
    Drop,
    StreamedOperator,
    arrays_for,
    likeness,
    row_blocks,
    square_lengths,
    strengths,
)
from spikegcl.structural import is_structural, sketch

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@dataclass(frozen=True)
class Source:
    """What some of the bits read: the features or, if ``structural``, a sketch of the edges; and how far it travels."""

    propagation: Propagation
    structural: bool = False


@dataclass(frozen=True, eq=False)
class Sources:
    """Components of one or two sources, side by side; each is read by its share of the bits."""

    parts: tuple[Components, ...]

    @property
    def num_features(self) -> int:
        """Feature columns of the graphs it reads."""
        return next(len(part.directions) for part in reversed(self.parts) if not part.structural)

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
        if len(self.parts) == 1:
            return self.parts[0].describe(asked=asked)
        clear, base = self.parts
        if clear.structural:
            half = "the structure, a sketch of the edges, which tells hidden ones much better than the features do"
        else:
            half = (
                f"features after {clear.propagation.hops} hops, which tell hidden edges much better than the other half"
            )
        return (*base.describe(), f"half of the bits: {half}")

    def arrays(self) -> dict[str, Floats]:
        """What a file has to keep, beside :meth:`constants`; :meth:`restore` is the way back."""
        return {
            f"{number}.{name}": array for number, part in enumerate(self.parts) for name, array in part.arrays().items()
        }

    def constants(self) -> list[dict[str, Any]]:
        return [part.constants() for part in self.parts]

    @classmethod
    def restore(cls, arrays: dict[str, Floats], constants: Sequence[dict[str, Any]]) -> Sources:
        parts = []
        for number, values in enumerate(constants):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            parts.append(Components.restore(own, values))
        return cls(tuple(parts))


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
    chosen = (Source(propagation),) if propagation else choose_sources(graph, blocks)
    fitted = [
        fit_components(
            graph, components or component_count(share), propagation=source.propagation, structural=source.structural,
            seed=seed, blocks=blocks,
        )
        for source, share in zip(chosen, _shares(bits, len(chosen)), strict=True)
    ]  # fmt: skip
    return Sources(tuple(part for part, _ in fitted)), _side_by_side([scores for _, scores in fitted], blocks)


def choose_sources(graph: Graph, blocks: int | None = None) -> tuple[Source, ...]:
    """What the bits read; of two sources the first tells hidden edges much better.

    Features are propagated if those of neighbours are more alike than those of nodes drawn at random. The structural
    columns of a graph without features are made from neighbours and go far.
    """
    if is_structural(graph):
        return (Source(FAR),)
    features = scaled_rows(graph, fit_scaling(features_of(graph)), blocks)
    rng = np.random.default_rng(noise.derive("likeness", features.shape[1]))
    own = features.times(rng.standard_normal((features.shape[1], DIRECTIONS), dtype=np.float32))
    base = Source(PPR if alike(graph, own, blocks=blocks) > CHANCE else OWN)
    few = arrays_for(blocks)((len(own), TRAVELLING))
    few[:] = own[:, :TRAVELLING]
    hidden = Drop(HIDDEN, noise.derive("hidden edges"))
    whole = make_operator(graph) if blocks is None else StreamedOperator(graph, blocks)
    operator = whole.drop_edges(*hidden)
    best, most = base, -np.inf
    for source in (base, Source(SMOOTH), Source(FAR, structural=True)):
        start = sketch(graph, operator, TRAVELLING) if source.structural else few
        found = alike(graph, source.propagation.apply(operator, start), hidden, blocks)
        if source == base or found > max(CLEARLY * most, LEAST):
            best, most = source, found
    return (base,) if best == base else (best, base)


def alike(graph: Graph, values: Floats, hidden: Drop | None = None, blocks: int | None = None) -> float:
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
    values, given = arrays_for(blocks)((values.shape[0], values.shape[1])), values
    values[:] = given
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
        joined[:, done : done + part.shape[1]] = part
        done += part.shape[1]
    return joined
