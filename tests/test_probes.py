"""Probes learn from training labels, choose on validation labels, and let test labels change one number only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikegcl import probes
from spikegcl.bits import pack
from spikegcl.errors import CodesError, ConfigError, FeatureError, LabelError
from spikegcl.graph import Split
from spikegcl.probes import PROBES, AdamW, initial_layers, linear_probe, majority_accuracy

NODES, BITS, CLASSES = 360, 70, 4


def noisy_codes(noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Split]:
    """Each class is a random pattern of bits; every node flips a share ``noise`` / 2 of its class's bits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, NODES)
    patterns = rng.random((CLASSES, BITS)) < 0.5
    x = np.where(rng.random((NODES, BITS)) < noise, rng.random((NODES, BITS)) < 0.5, patterns[labels])
    order = rng.permutation(NODES)
    return x.astype(np.uint8), labels, Split(order[:120], order[120:200], order[200:])


@pytest.fixture(scope="module")
def easy():
    return noisy_codes(0.5)


@pytest.fixture(scope="module")
def hard():
    return noisy_codes(0.88)


def same(a: probes.ProbeResult, b: probes.ProbeResult) -> bool:
    """Equal in everything test labels may not touch."""
    return (
        np.array_equal(a.weight, b.weight)
        and np.array_equal(a.bias, b.bias)
        and (a.val_accuracy, a.step, a.strength) == (b.val_accuracy, b.step, b.strength)
    )


def test_adamw_equals_torch():
    rng = np.random.default_rng(0)
    start = [rng.normal(size=(30, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)]
    ours, theirs = [p.copy() for p in start], [torch.nn.Parameter(torch.tensor(p)) for p in start]
    optimiser = AdamW(ours, 0.01, 5e-4)
    reference = torch.optim.AdamW(theirs, lr=0.01, weight_decay=5e-4)
    for _ in range(100):
        gradients = [rng.normal(size=p.shape).astype(np.float32) for p in start]
        optimiser.step(gradients)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(a - b.detach().numpy()).max() < 1e-5


def test_layers_start_as_torch_starts_them():
    weight, bias = initial_layers(BITS, CLASSES, 2, seed=7)
    torch.manual_seed(7)
    for repeat in range(2):
        layer = torch.nn.Linear(BITS, CLASSES)
        assert np.allclose(weight[:, repeat], layer.weight.detach().numpy().T, atol=1e-7)
        assert np.allclose(bias[repeat], layer.bias.detach().numpy(), atol=1e-7)


def test_paper_probe_equals_the_plain_torch_loop(hard):
    x, labels, split = hard
    result = linear_probe(pack(x), labels, split, bits=BITS, seed=3)

    torch.manual_seed(3)
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(labels)
    layer = torch.nn.Linear(BITS, CLASSES)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=5e-4)
    best, best_step, weight, test = -1.0, 0, None, 0.0
    for step in range(1, 101):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(layer(inputs[split.train]), targets[split.train]).backward()
        optimiser.step()
        hits = (layer(inputs).argmax(1) == targets).double()
        if hits[split.val].mean() > best:
            best, best_step, weight = float(hits[split.val].mean()), step, layer.weight.detach().clone()
            test = float(hits[split.test].mean())
    assert result.step == best_step
    assert (result.val_accuracy, result.test_accuracy) == (pytest.approx(best), pytest.approx(test))
    assert np.allclose(result.weight, weight.numpy().T, atol=1e-4)


def test_logreg_equals_scikit_learn(hard, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    x, labels, split = hard
    monkeypatch.setattr(probes, "STRENGTHS", (0.01,))
    monkeypatch.setattr(probes, "TOLERANCE", 1e-6)
    result = linear_probe(pack(x), labels, split, kind="logreg", bits=BITS, predict=True)
    reference = LogisticRegression(C=1 / (0.01 * len(split.train)), tol=1e-8, max_iter=2000)
    reference.fit(x[split.train].astype(np.float64), labels[split.train])
    assert np.allclose(result.weight, reference.coef_.T, atol=1e-3)
    assert np.mean(result.predictions == reference.predict(x)) > 0.995
    assert result.test_accuracy == pytest.approx(np.mean(result.predictions[split.test] == labels[split.test]))


@pytest.mark.parametrize("kind", PROBES)
def test_bits_and_the_same_bits_as_floats_agree(hard, kind, monkeypatch):
    x, labels, split = hard
    if kind == "logreg":  # floats would be standardised, bits are not
        monkeypatch.setattr(probes._FloatRows, "moments", lambda rows: (rows.values.mean(0, np.float64), np.ones(BITS)))
    packed = linear_probe(pack(x), labels, split, kind=kind, bits=BITS)
    floats = linear_probe(x.astype(np.float32), labels, split, kind=kind)
    assert np.allclose(packed.weight, floats.weight, atol=2e-3)
    assert (packed.step, packed.strength) == (floats.step, floats.strength)


@pytest.mark.parametrize("kind", PROBES)
def test_probe_is_deterministic_and_far_above_chance(easy, kind):
    x, labels, split = easy
    first, second = (linear_probe(pack(x), labels, split, kind=kind, bits=BITS, seed=1) for _ in range(2))
    assert same(first, second) and first.test_accuracy == second.test_accuracy
    assert first.test_accuracy > 0.9 > majority_accuracy(labels, split) + 0.4
    assert first.kind == kind and first.seconds > 0 and first.predictions is None


@pytest.mark.parametrize("kind", PROBES)
def test_test_labels_change_the_test_accuracy_only(hard, kind):
    x, labels, split = hard
    shuffled = labels.copy()
    shuffled[split.test] = np.random.default_rng(0).permutation(labels[split.test])
    honest, blind = (linear_probe(pack(x), y, split, kind=kind, bits=BITS) for y in (labels, shuffled))
    assert same(honest, blind)
    assert honest.test_accuracy > blind.test_accuracy + 0.1


@pytest.mark.parametrize("kind", PROBES)
def test_test_rows_change_the_test_accuracy_only(hard, kind):
    x, labels, split = hard
    other = x.copy()
    other[split.test] = 0
    assert same(*(linear_probe(pack(rows), labels, split, kind=kind, bits=BITS) for rows in (x, other)))


def test_strength_follows_the_validation_labels(hard, monkeypatch):
    x, labels, split = hard
    honest = linear_probe(pack(x), labels, split, kind="logreg", bits=BITS)
    with monkeypatch.context() as patch:
        patch.setattr(probes, "STRENGTHS", probes.STRENGTHS[-1:])
        weak = linear_probe(pack(x), labels, split, kind="logreg", bits=BITS, predict=True)
    flattered = labels.copy()
    flattered[split.val] = weak.predictions[split.val]
    chosen = linear_probe(pack(x), flattered, split, kind="logreg", bits=BITS)
    assert honest.strength > chosen.strength
    assert honest.strength in probes.STRENGTHS


def test_of_equal_strengths_the_stronger_counts():
    x = np.tile(np.eye(2, dtype=np.uint8), (30, 1))
    labels = np.tile([0, 1], 30)
    split = Split(range(20), range(20, 40), range(40, 60))
    result = linear_probe(pack(x), labels, split, kind="logreg", bits=2)
    assert result.val_accuracy == 1.0 and result.strength == probes.STRENGTHS[0]


def test_repeats_are_separate_probes_reported_by_their_mean(hard):
    x, labels, split = hard
    one = linear_probe(pack(x), labels, split, bits=BITS, seed=5)
    three = linear_probe(pack(x), labels, split, bits=BITS, seed=5, repeats=3)
    fits = [probes._Part(probes._BitRows(pack(x[nodes]), BITS), labels[nodes]) for nodes in (split.train, split.val)]
    stacked = probes._fit_paper(*fits, CLASSES, seed=5, repeats=3)
    assert stacked.val_accuracy[0] == one.val_accuracy and stacked.step[0] == one.step
    assert np.allclose(stacked.weight[:, 0], one.weight, atol=1e-5)
    assert not np.allclose(stacked.weight[:, 0], stacked.weight[:, 1], atol=1e-2)
    assert three.val_accuracy == pytest.approx(stacked.val_accuracy.mean())
    assert np.array_equal(three.weight, stacked.weight[:, stacked.val_accuracy.argmax()])


@pytest.mark.parametrize("kind", PROBES)
def test_predictions_are_labels_and_follow_from_the_weights(easy, kind):
    x, labels, split = easy
    names = np.array([3, 5, 6, 11])[labels]
    result = linear_probe(pack(x), names, split, kind=kind, bits=BITS, predict=True)
    assert result.classes.tolist() == [3, 5, 6, 11]
    assert result.weight.shape == (BITS, CLASSES) and result.bias.shape == (CLASSES,)
    expected = result.classes[(x @ result.weight + result.bias).argmax(1)]
    assert np.mean(result.predictions == expected) > 0.99
    assert result.test_accuracy == pytest.approx(np.mean(result.predictions[split.test] == names[split.test]))


def test_logreg_on_floats_ignores_units_and_constant_columns(hard):
    x, labels, split = hard
    values = x + np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    other = 50 * values - 20
    other[:, 0] = values[:, 0]
    padded = np.concatenate([values, np.full((NODES, 1), 0.1, np.float32)], axis=1)
    base, scaled, wider = (
        linear_probe(rows, labels, split, kind="logreg", predict=True) for rows in (values, other, padded)
    )
    assert base.strength == scaled.strength == wider.strength
    assert np.mean(base.predictions == scaled.predictions) > 0.98
    assert np.mean(base.predictions == wider.predictions) > 0.98
    assert np.isfinite(wider.weight).all()


@pytest.mark.parametrize("kind", PROBES)
def test_tensors_are_accepted(easy, kind):
    x, labels, split = easy
    values = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    assert same(
        linear_probe(values, torch.tensor(labels), split, kind=kind),
        linear_probe(x.astype(np.float32), labels, split, kind=kind),
    )
    packed = pack(x)
    assert same(*(linear_probe(p, labels, split, kind=kind, bits=BITS) for p in (packed, torch.tensor(packed))))


def test_majority_is_counted_on_training_labels():
    labels = np.array([0, 1, 1, 0, 0, 0, 1])
    assert majority_accuracy(labels, Split([0, 1, 2], [3], [4, 5, 6])) == pytest.approx(1 / 3)


def labelled(**changes):
    labels = np.tile([0, 1], 10)
    for node, label in changes.items():
        labels[int(node[1:])] = label
    return labels


@pytest.mark.parametrize(
    ("labels", "split", "message"),
    [
        (None, Split(range(8), range(8, 12), range(12, 20)), "has none"),
        (labelled()[:19], Split(range(8), range(8, 12), range(12, 20)), "one integer label per node"),
        (labelled() / 2, Split(range(8), range(8, 12), range(12, 20)), "one integer label per node"),
        (labelled(), Split(range(8), [], range(12, 20)), "no validation nodes"),
        (labelled(), Split([], range(8, 12), range(12, 20)), "no training nodes"),
        (labelled(), Split(range(8), range(8, 12), []), "no test nodes"),
        (labelled(), Split(range(8), range(8, 12), [40]), "test nodes run from 40 to 40"),
        (labelled(n9=-1), Split(range(8), range(8, 12), range(12, 20)), "validation node 9 has no label"),
        (np.ones(20, int), Split(range(8), range(8, 12), range(12, 20)), "at least two classes"),
        (labelled(n9=2), Split(range(8), range(8, 12), range(12, 20)), "label 2 is .* on no training node"),
        (labelled(n19=5), Split(range(8), range(8, 12), range(12, 20)), "label 5 is .* on no training node"),
    ],
)
def test_labels_that_cannot_work_are_refused(labels, split, message):
    with pytest.raises(LabelError, match=message):
        linear_probe(np.ones((20, 3), np.float32), labels, split)


def test_inputs_that_cannot_work_are_refused(easy):
    x, labels, split = easy
    with pytest.raises(ConfigError, match="paper or logreg"):
        linear_probe(pack(x), labels, split, bits=BITS, kind="svm")
    with pytest.raises(ConfigError, match="at least one repeat"):
        linear_probe(pack(x), labels, split, bits=BITS, repeats=0)
    with pytest.raises(ConfigError, match="how many bits"):
        linear_probe(pack(x), labels, split)
    with pytest.raises(CodesError, match="uint8 matrix"):
        linear_probe(x.astype(np.float32), labels, split, bits=BITS)
    bad = x.astype(np.float32)
    bad[17, 3] = np.nan
    with pytest.raises(FeatureError, match="row 17 is not finite"):
        linear_probe(bad, labels, split)
    with pytest.raises(FeatureError, match="N x d matrix"):
        linear_probe(bad[0], labels, split)


def test_what_overflows_32_bits_is_an_error():
    embedding = np.random.default_rng(0).standard_normal((30, 2))
    embedding[4, 1] = 1e300
    labels = np.arange(30) % 2
    nodes = np.arange(30)
    with pytest.raises(FeatureError, match="row 4 is not finite"):
        linear_probe(embedding, labels, Split(nodes[:10], nodes[10:20], nodes[20:]))
