"""Inputs without gradients: scale the features, propagate them, take principal components.

Every stage is a small frozen value that was fitted on one graph and applies to any graph with the same columns:

    Scaling      features -> centred features, kept sparse (scaling.py)
    Propagation  x -> P^k x, or personalised PageRank z <- (1 - restart) P z + restart x
    Components   graph -> N x k scores: scaling, propagation, PCA

Nothing looks at labels. :mod:`sources` decides what is propagated, :mod:`closed_forms` makes codes of the scores, and
an encoder may read them.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from spikegcl import noise
from spikegcl.graph import features_of
from spikegcl.propagate import Operator, make_operator, propagate
from spikegcl.scaling import FEW, STRANGE, Scaling, fit_scaling, inverse_of
from spikegcl.streaming import (
    ScaledRows,
    StreamedOperator,
    arrays_for,
    column_sums,
    column_variances,
    orthonormalise,
    square_lengths,
)
from spikegcl.structural import with_structure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from spikegcl.graph import Graph

    Floats = NDArray[np.float32]

log = logging.getLogger("spikegcl")

CHUNK = 256  # columns propagated at a time
EXACT_COLUMNS = 2048  # lengths of propagated rows are exact up to this many columns ...
SKETCH = 512  # ... and estimated from so many random directions for more, to about 3 %
DENSE_BYTES = 2**28  # propagated features up to this size are decomposed as a dense matrix in memory
CONSTANT = 1e-10  # of the largest variance: a column with less is a constant and its rounding
OVERSAMPLED = 10  # directions beyond those asked for, as in scikit-learn
POWER_ITERATIONS = 2  # of the randomised PCA: the spectrum of smoothed features falls quickly


# -------------------------------------------------------------------------------------------------- propagation


@dataclass(frozen=True)
class Propagation:
    """P^hops x with ``restart`` 0, else z <- (1 - restart) P z + restart x from z = x, ``hops`` times."""

    hops: int = 10
    restart: float = 0.15

    def apply(self, operator: Operator | StreamedOperator, x: Floats) -> Floats:
        """x is N x W. The result is a new array unless there are no hops."""
        z = np.ascontiguousarray(x, np.float32)
        if isinstance(operator, StreamedOperator):
            for _ in range(self.hops):
                z = operator.step(z, x, self.restart)
            return z
        start = spread = torch.from_numpy(z)
        for _ in range(self.hops):
            spread = propagate(operator, spread)
            if self.restart:
                spread = spread.mul_(1 - self.restart).add_(start, alpha=self.restart)
        out: Floats = spread.numpy()
        return out


PPR = Propagation()
OWN = Propagation(0, 0.0)  # a node's own features
FAR = Propagation(restart=0.02)  # of structural columns, which tell little by themselves (compact/structural.md)


@dataclass(frozen=True, eq=False)
class Propagated:
    """Scaled and propagated features of a graph, row i times ``inverse[i]``; ``kept`` may hold the matrix itself.

    A product with W columns propagates these, not the d columns of the features; P is symmetric, so the transposed
    product propagates its argument.
    """

    operator: Operator | StreamedOperator
    features: ScaledRows
    propagation: Propagation
    inverse: Floats
    kept: Floats | None = None

    def times(self, weight: Floats) -> Floats:
        product = self.propagation.apply(self.operator, self.features.times(weight))
        product *= self.inverse[:, None]
        return product

    def transposed_times(self, values: Floats) -> Floats:
        """Overwrites ``values``."""
        values *= self.inverse[:, None]
        return self.features.transposed_times(self.propagation.apply(self.operator, values))

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """The matrix itself, CHUNK columns at a time, and which these are."""
        for low in range(0, self.features.shape[1], CHUNK):
            block = self.propagation.apply(self.operator, self.features.columns(low, low + CHUNK))
            block *= self.inverse[:, None]
            yield slice(low, low + CHUNK), block


def propagated(
    graph: Graph,
    scaling: Scaling,
    propagation: Propagation,
    *,
    unit: bool,
    keep: bool = False,
    blocks: int | None = None,
) -> Propagated:
    """Features of ``graph`` scaled and propagated, with ``unit`` rows of length one; with ``keep`` also as a matrix.

    With ``blocks``, nothing of the size of the graph is in memory: it is gone through in so many blocks of rows, and
    results are in temporary files (streaming.py). The numbers are the same.

    Lengths are exact up to ``EXACT_COLUMNS`` columns; those of wider features are estimated from ``SKETCH`` random
    directions, always the same ones.
    """
    operator = make_operator(graph) if blocks is None else StreamedOperator(graph, blocks)
    features = scaled_rows(graph, scaling, blocks)
    count, width = features.shape
    whole = Propagated(operator, features, propagation, np.ones(count, np.float32))
    square: Any = 0
    exact = width <= EXACT_COLUMNS
    kept = features.new_array((count, width)) if keep else None
    for columns, block in whole.blocks() if keep or (unit and exact) else ():
        if kept is not None:
            kept[:, columns] = block
        if unit and exact:
            square = square + square_lengths(block)
    if not unit:
        return dataclasses.replace(whole, kept=kept)
    if not exact:
        rng = np.random.default_rng(noise.derive("row lengths", width))
        directions = rng.standard_normal((width, SKETCH), dtype=np.float32) / np.float32(np.sqrt(SKETCH))
        square = square_lengths(whole.times(directions))
    inverse = inverse_of(np.sqrt(square))
    if kept is not None:
        kept *= inverse[:, None]
    return dataclasses.replace(whole, inverse=inverse, kept=kept)


def scaled_rows(graph: Graph, scaling: Scaling, blocks: int | None) -> ScaledRows:
    """Scaled features of ``graph``; with ``blocks`` what they are multiplied to is in temporary files."""
    return ScaledRows(features_of(graph), scaling, arrays_for(blocks))


# --------------------------------------------------------------------------------------------------- components


@dataclass(frozen=True, eq=False)
class Components:
    """Principal components of the scaled, propagated features of one graph, for any graph with the same columns.

    ``directions`` d x k, ``centre`` k (the mean in these directions); with ``unit`` the rows have length one before
    and after the projection. ``offset`` k and ``scale`` bring the scores of the fitted graph to mean zero and one
    overall deviation. ``structural`` ones are of a sketch of the edges in place of the features.
    """

    scaling: Scaling
    propagation: Propagation
    unit: bool
    directions: Floats
    centre: Floats
    offset: Floats
    scale: float
    structural: bool = False

    def apply(self, graph: Graph, blocks: int | None = None) -> Floats:
        """Scores of every node, N x k, by falling variance; with ``blocks`` as :func:`propagated` has it."""
        if self.structural:
            graph = with_structure(graph, len(self.directions), blocks)
        elif strange := self.scaling.strange(features_of(graph)):
            log.warning(
                "%d nodes have a feature %g deviations or more from its mean in training, and change the codes around "
                "them; look for wrong units or missing values",
                strange,
                STRANGE,
            )
        return self._scores(propagated(graph, self.scaling, self.propagation, unit=self.unit, blocks=blocks))

    def describe(self, *, asked: bool = False) -> tuple[str, ...]:
        """What was chosen for this graph, and why, one sentence each; ``asked`` if settings chose the propagation."""
        columns, count = self.directions.shape
        kind = "few columns" if columns < FEW else "real values"
        features = {
            "words": "bag of words (no negatives; sparse, or zeros and ones), so idf weights and rows of unit length",
            "weighted": "words with weights of their own (sparse fractions), so square roots and rows of unit length",
            "standard": f"{kind}, so columns are centred and divided by their deviation",
        }
        if self.propagation == OWN:
            spread, reason = "none", "neighbours' features are no more alike than those of nodes drawn at random"
        elif self.propagation.restart:
            spread = f"personalised PageRank (restart {self.propagation.restart:g}, {self.propagation.hops} hops)"
            alike = "neighbours' features are alike, and a node keeps a part of its own"
            reason = "structural columns tell little by themselves" if self.propagation == FAR else alike
        else:
            spread, reason = f"{self.propagation.hops} hops", ""
        return (
            f"inputs: {features[self.scaling.kind]}",
            f"propagation: {spread}: {'as asked' if asked else reason}",
            f"components: {count} from {columns} columns",
        )

    def leading_columns(self, count: int, variance: Floats) -> Floats:
        """The ``count`` feature columns that vary most, as combinations of scores with this ``variance``: k x count.

        They are fewer where the others do not vary.
        """
        spread = np.square(self.directions) @ variance
        widest = np.argsort(-spread, kind="stable")[:count]
        widest = widest[spread[widest] > CONSTANT * spread.max(initial=0)]
        return np.ascontiguousarray(self.directions[widest].T)

    def arrays(self) -> dict[str, Floats]:
        """What a file has to keep, beside :meth:`constants`; :meth:`restore` is the way back."""
        own = {name: getattr(self, name) for name in ("directions", "centre", "offset")}
        return {**own, "scaling.weight": self.scaling.weight, "scaling.offset": self.scaling.offset}

    def constants(self) -> dict[str, Any]:
        return {
            "scaling": [self.scaling.kind, self.scaling.scale],
            "propagation": dataclasses.astuple(self.propagation),
            "unit": self.unit,
            "scale": self.scale,
            "structural": self.structural,
        }

    @classmethod
    def restore(cls, arrays: dict[str, Floats], constants: dict[str, Any]) -> Components:
        kind, scale = constants["scaling"]
        scaling = Scaling(kind, arrays["scaling.weight"], arrays["scaling.offset"], scale)
        return cls(
            scaling, Propagation(*constants["propagation"]), constants["unit"], arrays["directions"],
            arrays["centre"], arrays["offset"], constants["scale"], constants["structural"],
        )  # fmt: skip

    def _scores(self, rows: Propagated) -> Floats:
        scores = rows.times(self.directions)
        scores -= self.centre
        if self.unit:
            scores *= inverse_of(np.sqrt(square_lengths(scores)))[:, None]
        scores -= self.offset
        scores *= np.float32(self.scale)
        return scores


def fit_components(
    graph: Graph,
    count: int,
    *,
    propagation: Propagation = PPR,
    structural: bool = False,
    scaling: str = "auto",
    unit: bool | None = None,
    seed: int = 0,
    blocks: int | None = None,
) -> tuple[Components, Floats]:
    """The first ``count`` components (at most d and N - 1), by a randomised singular value decomposition.

    With ``structural`` of a sketch of the edges in place of the features. Without ``unit`` rows get length one, unless
    there are fewer than ``FEW`` columns, whose length says too much. Returns the components with the scores of
    ``graph``: what ``apply`` would give, without taking row lengths again. ``blocks`` is as :func:`propagated` has it.
    """
    if structural:
        graph = with_structure(graph, blocks=blocks)
    scaled = fit_scaling(features_of(graph), scaling)
    nodes, width = graph.features.shape
    unit = (scaled.kind != "standard" or width >= FEW) if unit is None else unit
    count = max(1, min(count, width, nodes - 1))
    rows = propagated(graph, scaled, propagation, unit=unit, keep=keeps_matrix(nodes, width, count), blocks=blocks)
    share = rows.features.new_array((nodes, 1))
    share += np.float32(1 / nodes)
    mean = rows.transposed_times(share)[:, 0]
    directions = _principal_directions(rows, mean, count, noise.derive(seed, "components"))
    fitted = Components(
        scaled, propagation, unit, directions, mean @ directions, np.zeros(count, np.float32), 1.0, structural
    )
    scores = fitted._scores(rows)
    deviation = float(np.sqrt(column_variances(scores).mean()))
    offset, scale = column_sums(scores) / np.float32(nodes), 1 / deviation if deviation > 0 else 1.0
    scores -= offset
    scores *= np.float32(scale)
    return dataclasses.replace(fitted, offset=offset, scale=scale), scores


def keeps_matrix(nodes: int, width: int, count: int) -> bool:
    """Whether the propagated features are kept to find ``count`` components: if small, or no wider than a product."""
    return 4 * nodes * width <= DENSE_BYTES or width <= count + OVERSAMPLED


def blank_components(columns: int, count: int) -> Components:
    """Components of the right shape with nothing in them: what counting operations needs."""
    zeros = [np.zeros(size, np.float32) for size in (columns, count)]
    scaling = Scaling("standard", zeros[0], zeros[0], 1.0)
    return Components(
        scaling, PPR, True, np.zeros((columns, count), np.float32), zeros[1], zeros[1], 1.0
    )  # fmt: skip


def _principal_directions(rows: Propagated, mean: Floats, count: int, seed: int) -> Floats:
    """Leading right singular vectors (d x count) of ``rows`` minus its mean row.

    Small matrices are made dense; larger ones are only multiplied, by the same randomised subspace iteration (Halko,
    Martinsson and Tropp, 2011), because scikit-learn's takes arrays alone. As many guesses as columns find all at once.
    """
    nodes, width = rows.features.shape
    if rows.kept is not None and 4 * nodes * width <= DENSE_BYTES:
        found = randomized_svd(rows.kept - mean, count, n_iter=POWER_ITERATIONS, random_state=seed)[2]
        directions: Floats = np.ascontiguousarray(found.T, np.float32)
        return directions
    unscaled = Scaling("standard", np.ones(width, np.float32), np.zeros(width, np.float32), 1.0)
    matrix = rows if rows.kept is None else ScaledRows(rows.kept, unscaled, rows.features.new_array)
    guesses = min(count + OVERSAMPLED, width, nodes)
    basis = np.random.default_rng(seed).standard_normal((width, guesses), dtype=np.float32)
    for _ in range(POWER_ITERATIONS + 1 if guesses < width else 1):
        guess = matrix.times(basis)
        guess -= mean @ basis
        orthonormalise(guess)
        shift = mean[:, None] * column_sums(guess)
        basis = matrix.transposed_times(guess) - shift
    directions = np.ascontiguousarray(np.linalg.svd(basis, full_matrices=False)[0][:, :count], np.float32)
    return directions


def component_count(bits: int) -> int:
    """Components that suit a number of bits: as many as bits, at least 128 (a graph may have fewer columns)."""
    return max(128, bits)
