"""What else codes are good for, judged by labels: nearest neighbours, clustering, retrieval.

Distances are Hamming distances of packed codes, taken in blocks so that memory stays bounded. Short codes have many
equal distances, and the order of rows must not decide between them: where the k-th nearest is one of several at the
same distance, these share the places that are left. So every result is the same for any order of the nodes.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from spikegcl.bits import check_packed, hamming, unpack
from spikegcl.errors import ConfigError, LabelError
from spikegcl.probes import majority_accuracy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Split

    Packed = NDArray[np.uint8]
    Integers = NDArray[np.int64]

log = logging.getLogger("spikegcl")

# Neighbours that vote, chosen on validation: about half a decade apart, and odd, so that two classes seldom draw.
NEIGHBOURS = (1, 3, 5, 11, 21, 51)
# Distances held at a time: 60 MB with all that goes beside them, 275 MB in the worst case (all codes equal).
BLOCK = 2**22

# Starts of k-means of which the tightest counts: single ones end in different local optima.
STARTS = 5
# Beyond so many bits to cluster (128 MB as float32) mini-batches of 4096 nodes replace full passes.
FULL_PASSES = 2**25
BATCH = 4096

RETRIEVED = 10
# Nodes that ask: the mean is then known to about one point (its standard error is at most sqrt(0.25 / 2000)).
QUERIES = 2000


@dataclass(frozen=True)
class KnnResult:
    """Accuracies from 0 to 1 of a vote of the ``k`` nearest training codes; ``chance`` is the majority class."""

    k: int
    val_accuracy: float
    test_accuracy: float
    chance: float


@dataclass(frozen=True)
class ClusteringResult:
    """Agreement of ``clusters`` clusters with the labels: 1 is perfect, independence is about 0."""

    clusters: int
    nmi: float
    ari: float


@dataclass(frozen=True)
class RetrievalResult:
    """Mean share of the ``k`` nearest nodes with the label of the asking node, and that of k nodes at random."""

    k: int
    queries: int
    precision: float
    chance: float


def knn_probe(packed: Any, labels: Any, split: Split, *, bits: int) -> KnnResult:
    """Classify by a vote of the k training codes nearest in Hamming distance; k is chosen on validation.

    ``packed`` is uint8, N x ceil(bits / 8); ``labels`` int64, N, with -1 for unknown (none of which may be in the
    split). Each of the k nearest has one vote; nodes tied for the last places share them. Equal votes go to the class
    of the nearest code, then to the smaller label. Of the k in ``NEIGHBOURS`` (as far as there are training nodes) the
    smallest with the best validation accuracy counts, and only with that one test nodes are classified.

    >>> from spikegcl.graph import Split
    >>> codes = np.array([[0], [7], [1], [6], [0], [7]], np.uint8)
    >>> knn_probe(codes, [0, 1, 0, 1, 0, 1], Split([0, 1], [2, 3], [4, 5]), bits=3)
    KnnResult(k=1, val_accuracy=1.0, test_accuracy=1.0, chance=0.5)
    """
    codes = check_packed(packed, bits)
    values = _check_labels(labels, len(codes))
    for name, nodes in (("training", split.train), ("validation", split.val), ("test", split.test)):
        if len(nodes) == 0:
            raise LabelError(f"the split has no {name} nodes; a probe needs all three parts")
        if nodes[0] < 0 or nodes[-1] >= len(codes):
            raise LabelError(f"{name} nodes run from {nodes[0]} to {nodes[-1]}, but there are {len(codes)} codes")
        if (values[nodes] < 0).any():
            raise LabelError(f"{name} node {nodes[values[nodes] < 0][0]} has no label; split labelled nodes only")
    classes, target = np.unique(values[split.train], return_inverse=True)
    base = codes[split.train]

    def accuracies(nodes: Integers, ks: Sequence[int]) -> NDArray[np.float64]:
        votes = neighbour_labels(codes[nodes], base, target, ks)
        # Votes of the nearest, too small to matter unless others are equal: those differ by 1 / (nodes tied) or more.
        winner = classes[(votes + 1e-7 * votes[:, :1]).argmax(2)]
        return np.asarray((winner == values[nodes, None]).mean(0), np.float64)

    ks = [k for k in NEIGHBOURS if k <= len(base)]
    on_validation = accuracies(split.val, ks)
    best = int(on_validation.argmax())
    return KnnResult(
        k=ks[best],
        val_accuracy=float(on_validation[best]),
        test_accuracy=float(accuracies(split.test, (1, ks[best]))[1]),
        chance=majority_accuracy(values, split),
    )


def clustering(packed: Any, labels: Any, *, bits: int, seed: int = 0) -> ClusteringResult:
    """Cluster the bits of the labelled nodes by k-means, with as many clusters as classes, and compare with the labels.

    ``packed`` is uint8, N x ceil(bits / 8); ``labels`` int64, N, with -1 for unknown. The best of ``STARTS`` seeded
    starts (smallest sum of squared distances, labels play no part) is compared by normalised mutual information
    (arithmetic mean of the entropies) and the adjusted Rand index. Takes 4 bytes of memory a bit.

    >>> codes = np.array([[0], [0], [15], [15]], np.uint8)
    >>> clustering(codes, [1, 1, 0, 0], bits=4)
    ClusteringResult(clusters=2, nmi=1.0, ari=1.0)
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    codes = check_packed(packed, bits)
    values = _check_labels(labels, len(codes))
    known = np.flatnonzero(values >= 0)
    count = len(np.unique(values[known]))
    if count < 2:
        raise LabelError("clustering is judged by labels of at least two classes")
    points = unpack(codes[known], bits).astype(np.float32)
    if points.size <= FULL_PASSES:
        model = KMeans(count, n_init=STARTS, random_state=seed)
    else:
        model = MiniBatchKMeans(count, n_init=STARTS, batch_size=BATCH, random_state=seed)
    # One thread: scikit-learn adds the sums of its threads in the order they finish, and the same seed would not
    # always give the same clusters.
    with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        found = model.fit_predict(points)
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        log.warning("fewer than %d codes are distinct: some clusters stay empty", count)
    return ClusteringResult(
        clusters=count,
        nmi=float(normalized_mutual_info_score(values[known], found)),
        ari=float(adjusted_rand_score(values[known], found)),
    )


def retrieval(packed: Any, labels: Any, *, bits: int, k: int = RETRIEVED, seed: int = 0) -> RetrievalResult:
    """Precision@k: of the k labelled nodes nearest to a labelled node, itself aside, the share with its label.

    ``packed`` is uint8, N x ceil(bits / 8); ``labels`` int64, N, with -1 for unknown. The mean is over every labelled
    node, or over ``QUERIES`` of them drawn by ``seed``. Nodes tied for the last places count in equal parts. Chance is
    the same mean for k other nodes at random: (n_c - 1) / (n - 1) for a node of a class of n_c among n nodes.

    >>> codes = np.array([[0], [1], [7], [7]], np.uint8)
    >>> retrieval(codes, [0, 0, 1, 1], bits=3, k=1)
    RetrievalResult(k=1, queries=4, precision=1.0, chance=0.3333333333333333)
    """
    codes = check_packed(packed, bits)
    values = _check_labels(labels, len(codes))
    known = np.flatnonzero(values >= 0)
    if not 1 <= k < len(known):
        raise LabelError(f"precision@{k} needs k from 1 and more than k labelled nodes; there are {len(known)}")
    _, target, sizes = np.unique(values[known], return_inverse=True, return_counts=True)
    asking = np.arange(len(known))
    if len(asking) > QUERIES:
        asking = np.sort(np.random.default_rng(seed).choice(len(known), QUERIES, replace=False))
    own = target[asking]
    found = neighbour_labels(codes[known[asking]], codes[known], target, (k,), themselves=asking)[:, 0]
    return RetrievalResult(
        k=k,
        queries=len(asking),
        precision=float(np.mean(found[np.arange(len(asking)), own] / k)),
        chance=float(np.mean((sizes[own] - 1) / (len(known) - 1))),
    )


def neighbour_labels(
    queries: Packed, base: Packed, target: Integers, ks: Sequence[int], *, themselves: Integers | None = None
) -> NDArray[np.float64]:
    """How many of the k nearest codes of ``base`` have each class, for every query and every k.

    Q x bytes, M x bytes, class indices 0..C-1 (M), K counts -> Q x K x C, each row of C with the sum k. Nodes at the
    distance of the k-th nearest share the places that nearer ones leave; so entries need not be whole.
    ``themselves`` (Q) names the row of ``base`` that is the query itself and must not count.
    """
    room = len(base) - (themselves is not None)
    if not ks or min(ks) < 1 or max(ks) > room:
        raise ConfigError(f"cannot find {max(ks, default=0)} neighbours among {room} other codes")
    classes, last = int(target.max()) + 1, max(ks)
    out = np.empty((len(queries), len(ks), classes))
    step = max(1, BLOCK // len(base))
    for first in range(0, len(queries), step):
        distance = hamming(queries[first : first + step], base)
        if themselves is not None:
            distance[np.arange(len(distance)), themselves[first : first + step]] = np.iinfo(np.int32).max
        nearest = np.sort(np.partition(distance, last - 1, axis=1)[:, :last], axis=1)
        row, column = np.nonzero(distance <= nearest[:, -1:])
        near, cell = distance[row, column], row * classes + target[column]
        for number, k in enumerate(ks):
            border = nearest[row, k - 1]
            closer, tied = (
                np.bincount(cell[chosen], minlength=len(distance) * classes).reshape(-1, classes)
                for chosen in (near < border, near == border)
            )
            left = k - closer.sum(1, keepdims=True)
            out[first : first + step, number] = closer + left * tied / tied.sum(1, keepdims=True)
    return out


def _check_labels(labels: Any, count: int) -> Integers:
    if labels is None:
        raise LabelError("this needs labels and the graph has none; give them with --labels")
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) != count or values.dtype.kind not in "iu":
        raise LabelError(f"one integer label per node ({count}) is needed, got {values.dtype} of {values.shape}")
    return values.astype(np.int64)
