"""How alike feature groups and spikes are: linear centred kernel alignment (CKA)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.groups import Groups


def group_cka(features: Any, bits01: NDArray[np.uint8], groups: Groups) -> NDArray[np.float64]:
    """T x T: linear CKA between the columns of group i (rows) and the spikes of step j (columns).

    ``features`` is N x d, dense or CSR; ``bits01`` is N x T*H with the bits of a step side by side. With centred
    columns X_i and S_j, CKA = ||X_i^T S_j||^2 / (||X_i^T X_i|| ||S_j^T S_j||) in Frobenius norms, which is the paper's
    HSIC ratio for linear kernels without a matrix of N x N. It is 0 where a group or a step is constant.
    """
    inputs = features[:, groups.order].astype(np.float64)
    norms = [_gram_norm(_centred(inputs[:, low:high])) for low, high in pairwise(groups.bounds)]
    similarity = np.zeros((groups.steps, groups.steps))
    for step, bits in enumerate(np.split(bits01, groups.steps, axis=1)):
        spikes = _centred(bits.astype(np.float64))
        shared = np.add.reduceat(((inputs.T @ spikes) ** 2).sum(1), groups.bounds[:-1])  # centring one side is enough
        scale = np.array(norms) * _gram_norm(spikes)
        np.divide(shared, scale, out=similarity[:, step], where=scale > 0)
    return similarity


def _centred(matrix: Any) -> NDArray[np.float64]:
    """A matrix (dense or sparse) as a dense one whose columns have mean 0; constant columns are exactly 0."""
    values = matrix.toarray() if sp.issparse(matrix) else matrix
    values = values - values[0]  # then the mean of a constant column has no rounding error
    centred: NDArray[np.float64] = values - values.mean(0)
    return centred


def _gram_norm(matrix: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(matrix.T @ matrix))
