"""Features brought to one scale, without making sparse ones dense.

Scaling   features -> centred features: a matrix, and the row that is to be subtracted from each of its rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from spikegcl.errors import FeatureError
from spikegcl.features import block_linear
from spikegcl.streaming import row_blocks, square_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

TOO_LARGE = "features are too large: their squares exceed float32; divide them by a constant"
COMMON = 0.95  # share of rows that no word of a sparse text is in
STRANGE = 1000.0  # deviations: among N values none is further than the root of N from their mean
FEW = 8  # columns or components: what is done with many loses too much of fewer (compact/tuning.md)


@dataclass(frozen=True, eq=False)
class Centred:
    """The matrix ``rows - 1 offset^T`` (N x d) with ``rows`` dense or CSR: centred without making it dense."""

    rows: Any
    offset: Floats

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.rows.shape[1]

    def times(self, weight: Floats) -> Floats:
        """The matrix times ``weight`` (d x W): N x W; a row's result does not depend on the other rows."""
        if sp.issparse(self.rows):
            product = self.rows @ weight
        else:
            product = block_linear(torch.from_numpy(self.rows), torch.from_numpy(weight), (0, len(weight))).numpy()
        return np.asarray(product - self.offset @ weight, np.float32)

    def transposed_times(self, values: Floats) -> Floats:
        """The transposed matrix times ``values`` (N x W): d x W."""
        return np.asarray(self.rows.T @ values - np.outer(self.offset, values.sum(0)), np.float32)

    def columns(self, low: int, high: int) -> Floats:
        """Columns ``low`` to ``high`` as a dense matrix."""
        block = self.rows[:, low:high]
        return np.asarray((block.toarray() if sp.issparse(block) else block) - self.offset[low:high], np.float32)


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are brought to one scale. ``weight`` (d) multiplies columns, ``offset`` (d) is subtracted.

    ``words``     columns times idf, rows to unit length, columns centred, everything divided by one deviation
    ``weighted``  the same with square roots in place of idf: words that come with weights of their own
    ``standard``  columns centred and divided by their deviation; constant columns become zero
    """

    kind: str
    weight: Floats
    offset: Floats
    scale: float

    def apply(self, features: Any) -> Centred:
        """Features (N x d, dense or CSR) of any graph with the same columns."""
        rows = _weigh(features, self.weight, self.kind)
        return Centred(rows * np.float32(self.scale), self.offset)

    def strange(self, features: Any) -> int:
        """How many rows have a value ``STRANGE`` deviations or more from its column's mean; 0 for words."""
        count = 0
        for rows in _in_blocks(features) if self.kind == "standard" else ():
            weighed = _weigh(rows, self.weight, self.kind)
            if sp.issparse(weighed):
                row = np.repeat(np.arange(weighed.shape[0]), np.diff(weighed.indptr))
                count += len(np.unique(row[np.abs(weighed.data) > STRANGE]))
            else:
                count += int((np.abs(weighed - self.offset) > STRANGE).any(1).sum())
        return count


def fit_scaling(features: Any, kind: str = "auto") -> Scaling:
    """Fit one of the kinds; ``auto`` takes the one that :func:`choose_scaling` finds.

    idf = max(0, log(N / (df + 1))) with df the number of nodes that have the word.
    """
    count, width = features.shape
    kind = choose_scaling(features) if kind == "auto" else kind
    if kind == "words":
        present = sum(np.asarray((rows != 0).sum(0)).ravel() for rows in _in_blocks(features))
        weight = np.maximum(0, np.log(count / (present + 1.0))).astype(np.float32)
        if not weight.any():  # words that all nodes have, or all but one
            weight = np.ones(width, np.float32)
    elif kind == "weighted":
        weight = np.ones(width, np.float32)
    else:
        mean, square = _moments(_in_blocks(features), count)
        deviations = np.sqrt(np.maximum(square - mean**2, 0))
        varies = deviations > np.maximum(1e-6 * np.sqrt(square), np.finfo(np.float32).tiny)
        weight = np.divide(1, deviations, out=np.zeros_like(deviations), where=varies).astype(np.float32)
    mean, square = _moments((_weigh(rows, weight, kind) for rows in _in_blocks(features)), count)
    deviation = float(np.sqrt(np.mean(square - mean**2).clip(min=0)))
    scale = 1 / deviation if kind != "standard" and deviation > 0 else 1.0
    return Scaling(kind, weight, (mean * scale).astype(np.float32), scale)


def choose_scaling(features: Any) -> str:
    """``words`` or ``weighted`` for what looks like words of a text, else ``standard``.

    Words: nothing negative, and sparse or nothing but zeros and ones; a column that nearly all rows of a sparse matrix
    have is a measured value among others that are not. They have weights of their own (TF-IDF, mostly)
    if there are fractions that differ inside a row; the same fraction all over a row is a row that was normalised.
    Fewer than ``FEW`` columns are no text: the length of a row says too much.
    """
    if features.shape[1] < FEW:
        return "standard"
    if not sp.issparse(features):
        return "words" if all(np.isin(rows, (0, 1)).all() for rows in _in_blocks(features)) else "standard"
    count, width = features.shape
    present = sum((np.bincount(rows.indices, minlength=width) for rows in _in_blocks(features)), np.zeros(width, int))
    if features.data.min(initial=0) < 0 or present.max() > COMMON * count:
        return "standard"
    return "weighted" if any(_has_weights(rows) for rows in _in_blocks(features)) else "words"


def _has_weights(rows: Any) -> bool:
    """Whether a row of this CSR matrix has fractions that differ."""
    starts = rows.indptr[:-1][np.diff(rows.indptr) > 0]
    if not len(starts) or (rows.data == np.rint(rows.data)).all():
        return False
    least, most = np.minimum.reduceat(rows.data, starts), np.maximum.reduceat(rows.data, starts)
    return bool((least < (1 - 1e-5) * most).any())


def _in_blocks(features: Any) -> Iterator[Any]:
    return (features[block] for block in row_blocks(features.shape[0]))


def _weigh(features: Any, weight: Floats, kind: str) -> Any:
    """Features as ``kind`` weighs them: columns times ``weight`` and, for words, rows to unit length."""
    if kind == "weighted":  # a new node may have what the fitted ones did not: weights below zero count as none
        features = _with_data(features, _root(features.data)) if sp.issparse(features) else _root(features)
    rows = (
        _with_data(features, features.data * weight[features.indices]) if sp.issparse(features) else features * weight
    )
    return rows if kind == "standard" else unit_rows(rows)


def _root(values: Floats) -> Floats:
    root: Floats = np.sqrt(np.maximum(values, 0))
    return root


def unit_rows(rows: Any) -> Any:
    """Rows divided by their Euclidean length; zero rows stay zero. Dense or CSR."""
    if not sp.issparse(rows):
        return rows * inverse_of(np.sqrt(square_lengths(rows)))[:, None]
    with np.errstate(over="ignore"):
        squares = np.asarray(rows.power(2).sum(1)).ravel()
    if not np.isfinite(squares).all():
        raise FeatureError(TOO_LARGE)
    inverse = inverse_of(np.sqrt(squares))
    return _with_data(rows, rows.data * np.repeat(inverse, np.diff(rows.indptr)))


def _with_data(rows: Any, data: Floats) -> Any:
    return sp.csr_array((data, rows.indices, rows.indptr), rows.shape)


def inverse_of(length: NDArray[Any]) -> Floats:
    """1 / length, and 0 for what has none."""
    inverse: Floats = np.divide(1, length, out=np.zeros_like(length), where=length > 0).astype(np.float32)
    return inverse


def _moments(blocks: Iterable[Any], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and mean square of the columns of ``count`` rows that come in blocks."""
    mean: Any = 0.0
    square: Any = 0.0
    for rows in blocks:
        with np.errstate(over="ignore"):
            squares = rows.power(2) if sp.issparse(rows) else np.square(rows, dtype=np.float64)
        share = rows.shape[0] / count
        mean = mean + share * np.asarray(rows.mean(0, dtype=np.float64)).ravel()
        square = square + share * np.asarray(squares.mean(0, dtype=np.float64)).ravel()
    if not np.isfinite(square).all():
        raise FeatureError(TOO_LARGE)
    return mean, square
