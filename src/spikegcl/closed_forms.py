"""Codes without gradients: rotate the components of a graph and cut them at their medians.

    Rotation     N x k scores -> N x bits values: ITQ rotations or Gaussian directions
    Medians      N x bits values -> packed bits
    ClosedForm   components, rotation and medians in a row: graph -> codes

:func:`fit_channels` is where the channels of the compact preset start. Nothing looks at labels.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from spikegcl import noise
from spikegcl.bits import pack
from spikegcl.streaming import column_variances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.components import Components
    from spikegcl.graph import Graph
    from spikegcl.sources import Sources

    Floats = NDArray[np.float32]

FIT_NODES = 2**16  # nodes a rotation is fitted on
ITERATIONS = 25  # of ITQ: its error hardly moves after twenty
BLOCK = 64  # components and bits of one ITQ rotation
ROTATED = (64, 32, 128)  # the same in the compact preset: several sizes are better than any one (compact/tuning.md)
FEW_COMPONENTS = 16  # rotations of fewer fire at several shares: no half alone tells ordered values (compact/tuning.md)
READ_NODES = 2**13  # nodes that read_back settles bits of: time grows with nodes times the square of the bits
READ_ROUNDS, READ_SWEEPS = 10, 2  # of its least squares, and over all bits in each
CLOSENESS = 0.03  # of bits to what directions give: the best of 0.03, 0.1 and 0.3 on three graphs (compact/tuning.md)
RIDGE = 1e-3  # keeps least squares apart from empty and equal columns
SINGLE_SHARES = {128: 4, 64: 8}  # in codes of so many bits or more one channel in so many reads a single column, ...
SINGLE_RATE = 0.2  # ... and fires at this share of the nodes; shorter codes have none to spare (compact/tuning.md)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Directions (k x bits) whose signs are the bits."""

    directions: Floats

    def apply(self, scores: Floats) -> Floats:
        """Scores (N x k or wider; the first k count) -> values, N x bits."""
        return scores[:, : len(self.directions)] @ self.directions


def gaussian_rotation(components: int, bits: int, seed: int = 0) -> Rotation:
    """Independent Gaussian directions over ``components`` scores."""
    rng = np.random.default_rng(noise.derive(seed, "gaussian"))
    return Rotation(rng.standard_normal((components, bits), dtype=np.float32))


def fit_itq(
    scores: Floats,
    bits: int,
    *,
    seed: int = 0,
    iterations: int = ITERATIONS,
    blocks: Sequence[int] = (BLOCK,),
    reads_back: bool = False,
) -> Rotation:
    """ITQ (Gong and Lazebnik, CVPR 2011): rotations R that bring scores V close to signs, min ||sign(V R) - V R||.

    A rotation turns the first components into as many bits. One follows the other until there are enough bits, of the
    sizes ``blocks`` in turn (the last may be smaller), each from its own random start. Fitted on at most ``FIT_NODES``
    nodes. The result is k x bits with k the largest size, and zeros where a rotation is smaller. With ``reads_back``
    every rotation is where :func:`read_back` starts.
    """
    rng = np.random.default_rng(noise.derive(seed, "itq"))
    values = scores[:, : min(max(blocks), bits)]
    if len(values) > FIT_NODES:
        values = values[rng.choice(len(values), FIT_NODES, replace=False)]
    directions, done, sizes = np.zeros((values.shape[1], bits), np.float32), 0, itertools.cycle(blocks)
    with threadpool_limits(1, user_api="blas"):  # products are small: threads that wait for each other cost more
        while done < bits:
            width = min(next(sizes), bits - done, values.shape[1])
            part = np.ascontiguousarray(values[:, :width])
            found = _rotate(part, rng, iterations)
            if reads_back:
                found = read_back(part[rng.permutation(len(part))[:READ_NODES]], found)
            directions[:width, done : done + width] = found
            done += width
    return Rotation(directions)


def _rotate(values: Floats, rng: np.random.Generator, iterations: int) -> Floats:
    """A rotation (k x k) that brings values (N x k) close to their signs."""
    rotation: Floats = np.linalg.qr(rng.standard_normal((values.shape[1],) * 2))[0].astype(np.float32)
    for _ in range(iterations):
        left, _, right = np.linalg.svd(np.where(values @ rotation > 0, np.float32(1), np.float32(-1)).T @ values)
        rotation = (left @ right).T
    return rotation


def read_back(scores: Floats, directions: Floats) -> Floats:
    """Directions R (k x b), starting from those given, towards bits B that tell the scores V (N x k) by a linear map W.

        min ||V - B W||^2 + CLOSENESS ||B - V R||^2    with B of -1 and 1, as many of each in every column

    W and R are least squares; bits are settled column by column, given the others (discrete coordinate descent: Shen et
    al., CVPR 2015, who read labels instead of scores). B is free of V R but for ``CLOSENESS``, and only R is kept: on
    real graphs its bits tell a little less of the scores than those of ITQ, but fewer nodes are near a threshold
    (results/compact/margins.md). Why a probe gains is not shown by more than that.
    """
    values = scores - scores.mean(0)
    values /= max(float(np.sqrt(np.square(values).sum(1).mean())), 1e-12)
    count, start = np.float32(len(values)), values @ directions
    bits = np.where(start > np.median(start, 0), np.float32(1), np.float32(-1)).T.copy()
    second = values.T @ values / count
    second += np.eye(len(second), dtype=np.float32) * (RIDGE * np.trace(second) / len(second) + np.float32(1e-12))
    own = np.eye(len(bits), dtype=np.float32)
    for _ in range(READ_ROUNDS):
        product = bits @ values / count
        readout = np.linalg.solve(bits @ bits.T / count + RIDGE * own, product).astype(np.float32)
        directions = np.linalg.solve(second, product.T).astype(np.float32)
        wanted = readout @ values.T + CLOSENESS * (values @ directions).T
        overlap = readout @ readout.T * (1 - own)
        for _ in range(READ_SWEEPS):
            for bit, others in enumerate(overlap):
                left = wanted[bit] - others @ bits
                bits[bit] = np.where(left > np.median(left), np.float32(1), np.float32(-1))
    found: Floats = np.linalg.solve(second, (bits @ values / count).T).astype(np.float32)
    return found


def fit_channels(sources: Sources, scores: Floats, bits: int, *, seed: int = 0) -> tuple[Floats, Floats]:
    """Where the channels of the compact preset start: directions (k x bits) and the share of nodes each fires at.

    Every source is read by its share of the channels. Most of these are ITQ rotations that :func:`read_back` has
    changed, and fire at half of the nodes. One in four, in shorter codes fewer (``SINGLE_SHARES``), reads a single
    feature column, as far as the components tell it, and fires at the nodes where that column is largest. All kinds are
    spread evenly over the bits, so that the first steps of a code are a code of the same kind.
    """
    kinds = []
    for components, columns, share in sources.shares(bits):
        outside = (columns.start, scores.shape[1] - columns.stop)
        for directions, rates in _kinds(components, scores[:, columns], share, seed):
            kinds.append((np.pad(directions, (outside, (0, 0))), rates))
    place = np.concatenate([(np.arange(len(rates)) + 0.5) / max(1, len(rates)) for _, rates in kinds])
    order = np.argsort(place, kind="stable")
    directions = np.concatenate([directions for directions, _ in kinds], axis=1)
    return np.ascontiguousarray(directions[:, order]), np.concatenate([rates for _, rates in kinds])[order]


def _kinds(components: Components, scores: Floats, bits: int, seed: int) -> list[tuple[Floats, Floats]]:
    """Rotations and single columns of one source: directions (k x b) and shares (b) of either kind.

    Further rotations of fewer than ``FEW_COMPONENTS`` say little new, unless they fire at other shares.
    """
    singles = next((bits // share for least, share in SINGLE_SHARES.items() if bits >= least), 0)
    single = components.leading_columns(singles, column_variances(scores).astype(np.float32))
    few = scores.shape[1] < FEW_COMPONENTS
    rotated = fit_itq(scores, bits - single.shape[1], seed=seed, blocks=ROTATED, reads_back=not few).directions
    width = len(rotated)
    halves = np.full(rotated.shape[1], 0.5, np.float32)
    shares = _spread_shares(np.arange(rotated.shape[1]) // width) if few else halves
    rotated = np.pad(rotated, ((0, scores.shape[1] - width), (0, 0)))
    return [(rotated, shares), (single, np.full(single.shape[1], SINGLE_RATE, np.float32))]


def _spread_shares(numbers: NDArray[np.int64]) -> Floats:
    """Shares between 5 and 95 %, spread evenly however many there are: half for number 0, then golden-ratio steps."""
    shares: Floats = (0.05 + 0.9 * ((0.5 + numbers * (np.sqrt(5) - 1) / 2) % 1)).astype(np.float32)
    return shares


@dataclass(frozen=True, eq=False)
class Medians:
    """Thresholds (bits) between zeros and ones."""

    thresholds: Floats

    def apply(self, values: Floats) -> NDArray[np.uint8]:
        """N x bits -> packed bits, N x ceil(bits / 8): one where a value is above its threshold."""
        return pack(values > self.thresholds)


def fit_medians(values: Floats) -> Medians:
    """The median of every column: half of the nodes get a one."""
    return Medians(np.median(values, axis=0).astype(np.float32))


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Components, rotation and medians of one graph: codes of any graph with the same columns."""

    components: Components
    rotation: Rotation
    medians: Medians

    def apply(self, graph: Graph) -> NDArray[np.uint8]:
        """Packed codes of every node."""
        return self.medians.apply(self.rotation.apply(self.components.apply(graph)))
