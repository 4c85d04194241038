"""BANE: binary codes by factorising smoothed features (Yang et al., ICDM 2018). No labels, no gradients.

    R = (I - gamma D^-1 L)^order X = ((1 - gamma) I + gamma D^-1 (A + I))^order X      rows of X have length 1
    S = U Sigma of the singular value decomposition of R, cut at ``rank``
    minimise ||S - B M||^2 + alpha ||M||^2 over B in {-1, +1}^(N x bits) and M in R^(bits x rank)

by turns: M = (B^T B + alpha I)^-1 B^T S, then ``sweeps`` passes over the columns of B, each set to its best value given
the others: B_k = sign(Q_k - sum_(l != k) B_l H_lk) with Q = S M^T and H = M M^T. The sign of 0 is +1.

R is never formed, only multiplied with vectors, and given M the rows of B do not depend on each other: a bit costs time
only when it flips, and a row is finished when a pass flips none. So the method takes memory for N x rank numbers and
minutes on large graphs, where a dense R or a dense N x N power takes days.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numba
import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.preprocessing import normalize

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.bits import pack
from spikegcl.energy import Layer, Operations
from spikegcl.graph import features_of
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

    Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BANESettings(Settings):
    bits: int = 100  # the authors'
    order: int = 4  # the authors' on citation graphs: how far features travel
    gamma: float = 0.7  # the authors' on Cora: how much of a node's row comes from its neighbourhood
    rank: int = 200  # the authors'; at most min(N, d)
    alpha: float = 1e-3  # the authors'
    rounds: int = 5  # the authors'
    sweeps: int = 10  # the authors'

    RANGES: ClassVar = {
        "bits": (1, 65536),
        "order": (0, 100),
        "gamma": (0, 1),
        "rank": (1, 65536),
        "alpha": (1e-12, 1e12),
        "rounds": (0, 10**6),
        "sweeps": (1, 10**6),
    }


def fit(
    graph: Graph,
    settings: BANESettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    """Runs on the CPU whatever ``device`` is. Row n of every matrix belongs to node n of the graph."""
    clock = Clock()
    settings = settings.replace(rank=min(settings.rank, *features_of(graph).shape))
    signs = factorise(principal_rows(graph, settings, seed), settings, seed)
    clock.lap("train")
    return Fitted(settings, codes=pack(signs > 0), bits=settings.bits, seconds=clock.seconds)


def principal_rows(graph: Graph, settings: BANESettings, seed: int) -> Floats:
    """S: U Sigma of R (N x rank). Where nothing is cut, R itself, which differs from S by a rotation that M absorbs."""
    features = normalize(features_of(graph))
    walk = lazy_walk(graph, settings.gamma)

    def smooth(x: Any) -> Any:
        return _power(walk, settings.order, features @ x)

    def smooth_transpose(x: Any) -> Any:
        return features.T @ _power(walk.T, settings.order, x)

    if settings.rank >= min(features.shape):
        return np.ascontiguousarray(smooth(np.eye(features.shape[1], dtype=np.float32)), np.float32)
    start = np.random.default_rng(noise.derive(seed, "bane", "svd")).standard_normal(min(features.shape))
    product = LinearOperator(features.shape, smooth, smooth_transpose, smooth, np.float32, smooth_transpose)
    left, values, _ = svds(product, settings.rank, v0=start.astype(np.float32))
    return np.ascontiguousarray(left * values, np.float32)


def lazy_walk(graph: Graph, gamma: float) -> sp.csr_array:
    """(1 - gamma) I + gamma D^-1 (A + I) with D the degrees of A + I: N x N, rows sum to 1."""
    identity = sp.eye_array(graph.num_nodes, dtype=np.float32, format="csr")
    adjacency = graph.adjacency + identity
    step = sp.diags_array(gamma / adjacency.sum(1)) @ adjacency
    return sp.csr_array(step + (1 - gamma) * identity, dtype=np.float32)


def _power(walk: Any, order: int, x: Any) -> Any:
    for _ in range(order):
        x = walk @ x
    return x


def factorise(rows: Floats, settings: BANESettings, seed: int) -> Floats:
    """B (N x bits of -1 and +1) for S = ``rows`` (N x rank), from random signs."""
    rng = np.random.default_rng(noise.derive(seed, "bane", "signs"))
    signs = np.where(rng.random((len(rows), settings.bits), np.float32) < 0.5, np.float32(-1), np.float32(1))
    for _ in range(settings.rounds):
        basis = best_basis(signs, rows, settings.alpha)
        gram = basis @ basis.T
        descend(signs, rows @ basis.T - signs @ gram, gram, settings.sweeps)
    return signs


def best_basis(signs: Floats, rows: Floats, alpha: float) -> Floats:
    """M = (B^T B + alpha I)^-1 B^T S: bits x rank. Solved in double precision, for columns of B may be equal."""
    gram = (signs.T @ signs).astype(np.float64) + alpha * np.eye(signs.shape[1])
    basis: Floats = scipy.linalg.solve(gram, signs.T @ rows, assume_a="pos").astype(np.float32)
    return basis


@numba.njit(parallel=True, cache=True, nogil=True)  # type: ignore[untyped-decorator]
def descend(signs: Floats, pull: Floats, gram: Floats, sweeps: int) -> None:
    """Cyclic coordinate descent on every row of ``signs`` (N x m), in place, at most ``sweeps`` passes over its bits.

    ``pull`` is Q - B H (N x m) and is kept so while bits flip; ``gram`` is H. Bit k is best at the sign of
    Q_k - sum_(l != k) b_l H_lk = pull_k + b_k H_kk.
    """
    width = signs.shape[1]
    for n in numba.prange(signs.shape[0]):
        row, left = signs[n], pull[n]
        for _ in range(sweeps):
            flips = 0
            for k in range(width):
                best = np.float32(1) if left[k] + row[k] * gram[k, k] >= 0 else np.float32(-1)
                if best != row[k]:
                    change = best - row[k]
                    row[k] = best
                    flips += 1
                    for bit in range(width):
                        left[bit] -= change * gram[k, bit]
            if flips == 0:
                break


def parameters(shape: Shape, settings: BANESettings) -> int:
    """The numbers of M: bits x rank. The codes are the result, not parameters."""
    return settings.bits * min(settings.rank, shape.nodes, shape.features)


def operations(shape: Shape, settings: BANESettings, spikes: tuple[int, ...] = ()) -> Operations:
    """What turns features into codes once the singular vectors and M are known."""
    rank, bits = min(settings.rank, shape.nodes, shape.features), settings.bits
    return Operations(
        (
            Layer("rank", shape.nodes * shape.features * rank, settings.order * shape.entries * rank),
            Layer("bits", shape.nodes * bits * (rank + settings.sweeps * bits)),
        )
    )


METHOD = Method("bane", "BANE", BANESettings, fit, parameters, operations, binary=True)
