"""Neighbours, clusters and retrieval: by hand where possible, blind to the order of nodes, never tuned on test."""

from __future__ import annotations

import numpy as np
import pytest

from spikegcl import tasks
from spikegcl.bits import hamming, pack
from spikegcl.errors import CodesError, ConfigError, LabelError
from spikegcl.graph import Split
from spikegcl.tasks import NEIGHBOURS, clustering, knn_probe, neighbour_labels, retrieval

BITS = 37


def noisy_codes(noise: float, nodes: int = 240, classes: int = 4, seed: int = 0):
    """Packed codes, each a pattern of its class with a share ``noise`` / 2 of the bits flipped; labels; a split."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    patterns = rng.random((classes, BITS)) < 0.5
    x = np.where(rng.random((nodes, BITS)) < noise, rng.random((nodes, BITS)) < 0.5, patterns[labels])
    order = rng.permutation(nodes)
    return pack(x), labels, Split(order[:80], order[80:140], order[140:])


def votes_by_hand(queries, base, labels, k, classes, themselves=None):
    """Every query alone: sort, count those nearer than the k-th, share the places left among those as near."""
    table = np.zeros((len(queries), classes))
    for n, row in enumerate(hamming(queries, base)):
        rows = [m for m in range(len(base)) if themselves is None or m != themselves[n]]
        border = sorted(row[rows])[k - 1]
        nearer = [m for m in rows if row[m] < border]
        tied = [m for m in rows if row[m] == border]
        for m in nearer:
            table[n, labels[m]] += 1
        for m in tied:
            table[n, labels[m]] += (k - len(nearer)) / len(tied)
    return table


@pytest.mark.parametrize("block", [1, 500, 2**22])
def test_neighbours_are_those_of_a_plain_search_in_blocks_of_any_size(monkeypatch, block):
    monkeypatch.setattr(tasks, "BLOCK", block)
    packed, labels, _ = noisy_codes(0.8)
    queries, base, target = packed[:50], packed[50:], labels[50:]
    found = neighbour_labels(queries, base, target, (1, 4, 190))
    for number, k in enumerate((1, 4, 190)):
        assert np.allclose(found[:, number], votes_by_hand(queries, base, target, k, 4))
        assert np.allclose(found[:, number].sum(1), k)


def test_a_node_is_not_its_own_neighbour():
    packed, labels, _ = noisy_codes(0.8)
    asking = np.arange(0, 240, 7)
    found = neighbour_labels(packed[asking], packed, labels, (3,), themselves=asking)[:, 0]
    assert np.allclose(found, votes_by_hand(packed[asking], packed, labels, 3, 4, asking))


def test_more_neighbours_than_codes_is_an_error():
    packed, labels, _ = noisy_codes(0.5, nodes=10)
    with pytest.raises(ConfigError, match="10 neighbours among 9"):
        neighbour_labels(packed, packed, labels, (10,), themselves=np.arange(10))


def test_knn_accuracy_is_that_of_votes_by_hand():
    packed, labels, split = noisy_codes(0.85)
    result = knn_probe(packed, labels, split, bits=BITS)

    def accuracy(nodes, k):
        base, target = packed[split.train], labels[split.train]
        votes = votes_by_hand(packed[nodes], base, target, k, 4)
        nearest = votes_by_hand(packed[nodes], base, target, 1, 4)
        return float(np.mean((votes + 1e-7 * nearest).argmax(1) == labels[nodes]))

    on_validation = [accuracy(split.val, k) for k in NEIGHBOURS]
    assert result.k == NEIGHBOURS[int(np.argmax(on_validation))]
    assert result.val_accuracy == max(on_validation)
    assert result.test_accuracy == accuracy(split.test, result.k)
    assert 1 / 4 < result.test_accuracy < 1


def test_equal_votes_go_to_the_nearest_class():
    # At k = 3 every class has one vote; the test code is nearest to class 2.
    packed = np.array([[0b111], [0b11], [0b1], [0b0], [0b0]], np.uint8)
    votes = neighbour_labels(packed[3:4], packed[:3], np.array([0, 1, 2]), (1, 3))
    assert votes[0, 1].tolist() == [1, 1, 1]
    assert knn_probe(packed, [0, 1, 2, 2, 2], Split([0, 1, 2], [3], [4]), bits=3).test_accuracy == 1


def test_knn_does_not_look_at_test_labels_or_at_the_order_of_nodes():
    packed, labels, split = noisy_codes(0.85)
    result = knn_probe(packed, labels, split, bits=BITS)
    changed = labels.copy()
    changed[split.test] = 0
    other = knn_probe(packed, changed, split, bits=BITS)
    assert (other.k, other.val_accuracy) == (result.k, result.val_accuracy)
    order = np.random.default_rng(1).permutation(len(packed))
    place = np.argsort(order)
    moved = Split(place[split.train], place[split.val], place[split.test])
    assert knn_probe(packed[order], labels[order], moved, bits=BITS) == result


@pytest.mark.parametrize(
    ("labels", "split", "words"),
    [
        (None, Split([0], [1], [2]), "needs labels"),
        ([0, 1], Split([0], [1], [2]), "one integer label per node"),
        ([0, 1, 0, 1], Split([0, 1], [2], []), "no test nodes"),
        ([0, 1, 0, 1], Split([0, 1], [2], [4]), "4 codes"),
        ([0, 1, -1, 1], Split([0, 1], [2], [3]), "validation node 2 has no label"),
    ],
)
def test_knn_says_what_is_wrong_with_labels_and_split(labels, split, words):
    with pytest.raises(LabelError, match=words):
        knn_probe(np.zeros((4, 1), np.uint8), labels, split, bits=3)


@pytest.mark.parametrize("limit", [2**25, 0])
def test_separated_codes_are_clustered_perfectly(monkeypatch, limit):
    monkeypatch.setattr(tasks, "FULL_PASSES", limit)
    packed, labels, _ = noisy_codes(0.1)
    result = clustering(packed, labels, bits=BITS)
    assert result.clusters == 4
    assert result.nmi == pytest.approx(1)
    assert result.ari == pytest.approx(1)


def test_clusters_of_codes_without_labels_in_them_mean_nothing():
    packed, _, _ = noisy_codes(1.0)
    labels = np.random.default_rng(5).integers(0, 4, len(packed))
    result = clustering(packed, labels, bits=BITS)
    assert abs(result.ari) < 0.05
    assert result.nmi < 0.1
    assert clustering(packed, labels, bits=BITS) == result


def test_clustering_leaves_unlabelled_nodes_out():
    packed, labels, _ = noisy_codes(0.6)
    some = np.where(np.arange(len(labels)) % 3 == 0, -1, labels)
    known = some >= 0
    assert clustering(packed, some, bits=BITS, seed=3) == clustering(packed[known], some[known], bits=BITS, seed=3)


def test_fewer_codes_than_clusters_is_logged(caplog):
    result = clustering(np.zeros((6, 1), np.uint8), [0, 1, 2, 0, 1, 2], bits=4)
    assert (result.nmi, result.ari) == (0, 0)
    assert "distinct" in caplog.text
    with pytest.raises(LabelError, match="two classes"):
        clustering(np.zeros((3, 1), np.uint8), [1, 1, -1], bits=4)


def test_precision_of_constructed_codes_is_known():
    # On the line 0, 1, 2, 3 of thermometer codes with labels a a b b: the nearest of 0 is 1 (right), of 3 is 2 (right);
    # 1 and 2 have one right and one wrong neighbour at the same distance.
    packed = np.array([[0b000], [0b001], [0b011], [0b111]], np.uint8)
    result = retrieval(packed, [0, 0, 1, 1], bits=3, k=1)
    assert result.precision == pytest.approx((1 + 0.5 + 0.5 + 1) / 4)
    assert result.chance == pytest.approx(1 / 3)
    # All three others: one of them has the label.
    assert retrieval(packed, [0, 0, 1, 1], bits=3, k=3).precision == pytest.approx(1 / 3)


def test_identical_codes_retrieve_at_chance_whatever_the_order():
    labels = np.repeat([0, 1, 2], [30, 20, 10])
    result = retrieval(np.zeros((60, 1), np.uint8), labels, bits=3)
    assert result.precision == pytest.approx(result.chance)


def test_retrieval_samples_many_nodes_by_seed_and_ignores_unlabelled_ones(monkeypatch):
    packed, labels, _ = noisy_codes(0.8)
    everyone = retrieval(packed, labels, bits=BITS)
    some = np.append(labels, np.full(50, -1))
    assert retrieval(np.concatenate([packed, packed[:50]]), some, bits=BITS) == everyone
    monkeypatch.setattr(tasks, "QUERIES", 100)
    first = retrieval(packed, labels, bits=BITS, seed=1)
    assert (first.queries, everyone.queries) == (100, 240)
    assert first == retrieval(packed, labels, bits=BITS, seed=1)
    assert first != retrieval(packed, labels, bits=BITS, seed=2)
    assert first.precision == pytest.approx(everyone.precision, abs=0.1)


def test_retrieval_says_what_is_missing():
    with pytest.raises(LabelError, match="there are 3"):
        retrieval(np.zeros((4, 1), np.uint8), [0, 1, 0, -1], bits=3, k=3)
    with pytest.raises(CodesError, match="2 bytes"):
        retrieval(np.zeros((4, 1), np.uint8), [0, 1, 0, 1], bits=9, k=1)
