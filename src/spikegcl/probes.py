"""Probes: what a linear classifier reads from frozen codes, under one protocol for every method.

Weights are fitted on training nodes, the stopping step or the regularisation is chosen on validation nodes, and test
labels are looked at once, for the accuracy that is reported. Packed codes are never unpacked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from spikegcl.bits import check_packed, linear, linear_transpose, ones_per_bit
from spikegcl.codes import Codes
from spikegcl.errors import ConfigError, FeatureError, LabelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Split

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

PROBES = ("paper", "logreg")
WITHOUT = "without labels, codes are made and not judged"

# The paper's probe (design.md, section 5): these three are its definition, not knobs.
STEPS, LEARNING_RATE, WEIGHT_DECAY = 100, 0.01, 5e-4
# Initialisations of the paper's probe whose mean accuracy is reported, as the authors do: one alone is noisy.
REPEATS = 5

# Half decades from 3.2 to 1e-4, strongest first. On codes of 64 to 3840 bits the best was between 0.3 and 3e-4 on seven
# graphs. Relative to the *mean* loss, so one grid serves a hundred and a hundred thousand training nodes.
STRENGTHS = tuple(float(10 ** (-half / 2)) for half in range(-1, 9))
# The path ends after this many strengths in a row whose validation accuracy is below the best: 1.5 decades past it.
PATIENCE = 3
# Largest gradient entry at which L-BFGS stops. From 1e-3 to 1e-4 accuracies move by up to 0.4 points, from 1e-4 to 1e-5
# by one node of the validation part.
TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """A fitted probe and its accuracies, **as fractions from 0 to 1**.

    ==================  ======================================================================================
    ``val_accuracy``    at the chosen step or strength; mean over repeats
    ``test_accuracy``   of the same weights; mean over repeats
    ``weight, bias``    d x C and C: the logits of raw input x are x W + b. Of the repeat best on validation
    ``classes``         int64, C: the label each column stands for
    ``step``            1..100, the step whose weights these are (``paper``), else None
    ``strength``        the chosen L2 strength (``logreg``), else None
    ``predictions``     int64, N: the label predicted for every node, if asked for
    ==================  ======================================================================================
    """

    kind: str
    val_accuracy: float
    test_accuracy: float
    weight: Floats = field(repr=False)
    bias: Floats = field(repr=False)
    classes: Integers = field(repr=False)
    seconds: float
    step: int | None = None
    strength: float | None = None
    predictions: Integers | None = field(default=None, repr=False)


def linear_probe(
    embedding: Any,
    labels: Any,
    split: Split,
    *,
    kind: str = "paper",
    seed: int = 0,
    bits: int | None = None,
    repeats: int = 1,
    predict: bool = False,
) -> ProbeResult:
    """Fit a linear classifier on the training nodes and report its validation and test accuracy.

    ``embedding`` is packed codes (uint8, N x ceil(bits / 8), with ``bits`` given) or N x d floats, as an array or a
    torch tensor of any device. ``labels`` is int64, N, with -1 for unknown (none of which may be in the split).

    ``paper``: softmax(x W + b), torch's default initialisation of a linear layer, AdamW (lr 0.01, weight decay 5e-4),
    100 full-batch steps on the mean cross-entropy, input raw (bits as 0/1, floats as they are). Validation accuracy is
    taken after every step; the first best step counts. ``repeats`` trains as many initialisations in one pass and
    reports mean accuracies (the authors use 5); initialisation r depends on ``seed`` and r alone.

    ``logreg``: argmin over V, b of mean cross-entropy + strength / 2 * ||V||^2 by L-BFGS, the strength chosen on
    validation accuracy along a path from strong to weak (``STRENGTHS``), each start warm; of equals the stronger
    counts, and the path ends early once accuracy keeps falling. Bits enter as 0/1, floats standardised by the mean and
    deviation of the training rows. (Bits are centred while fitting: as the intercept carries no penalty, that leaves
    the optimum in place and makes it quicker to reach.) The weights returned apply to raw input. Deterministic:
    ``seed`` and ``repeats`` have no effect.

    >>> from spikegcl.graph import Split
    >>> codes = np.array([[1], [2], [1], [2], [1], [2]], np.uint8)
    >>> linear_probe(codes, [0, 1, 0, 1, 0, 1], Split([0, 1], [2, 3], [4, 5]), kind="logreg", bits=2).test_accuracy
    1.0
    """
    start = time.perf_counter()
    if kind not in PROBES:
        raise ConfigError(f"unknown probe {kind!r}; choose {' or '.join(PROBES)}")
    if repeats < 1:
        raise ConfigError(f"a probe needs at least one repeat, got {repeats}")
    if isinstance(embedding, Codes):
        embedding, bits = embedding.packed, embedding.bits
    rows = _as_rows(embedding, bits)
    values, classes = check_labels(labels, split, len(rows))
    targets = np.searchsorted(classes, values)
    train, val, test = (_Part(rows.take(nodes), targets[nodes]) for nodes in (split.train, split.val, split.test))

    with threadpool_limits(_blas_threads(train.rows, len(classes)), user_api="blas"):
        if kind == "paper":
            fit = _fit_paper(train, val, len(classes), seed, repeats)
        else:
            fit = _fit_logreg(train, val, len(classes))

    best = int(fit.val_accuracy.argmax())
    weight, bias = np.ascontiguousarray(fit.weight[:, best]), fit.bias[best].copy()
    return ProbeResult(
        kind=kind,
        val_accuracy=float(fit.val_accuracy.mean()),
        test_accuracy=float(test.accuracy(fit.weight, fit.bias).mean()),
        weight=weight,
        bias=bias,
        classes=classes,
        step=None if fit.step is None else int(fit.step[best]),
        strength=fit.strength,
        predictions=classes[rows.forward(weight, bias).argmax(1)] if predict else None,
        seconds=time.perf_counter() - start,
    )


def majority_accuracy(labels: Any, split: Split) -> float:
    """Chance level: the share of test nodes that carry the most frequent training label (the smallest of equals).

    >>> from spikegcl.graph import Split
    >>> majority_accuracy([0, 0, 1, 0, 0, 1], Split([0, 1, 2], [3], [4, 5]))
    0.5
    """
    values = np.asarray(labels)
    present, counts = np.unique(values[split.train], return_counts=True)
    return float(np.mean(values[split.test] == present[counts.argmax()]))


# ------------------------------------------------------------------------------------------------ the paper's probe


@dataclass(frozen=True)
class _Fit:
    """Chosen weights (d x R x C), biases (R x C) and validation accuracies (R) of R repeats."""

    weight: Floats
    bias: Floats
    val_accuracy: NDArray[np.float64]
    step: Integers | None = None
    strength: float | None = None


def _fit_paper(train: _Part, val: _Part, classes: int, seed: int, repeats: int) -> _Fit:
    """AdamW on all repeats at once: their weights side by side are one d x (R C) matrix."""
    weight, bias = initial_layers(train.rows.columns, classes, repeats, seed)
    optimiser = AdamW([weight, bias], LEARNING_RATE, WEIGHT_DECAY)
    best_weight, best_bias = weight.copy(), bias.copy()
    best_accuracy, best_step = np.full(repeats, -1.0), np.zeros(repeats, np.int64)
    for step in range(1, STEPS + 1):
        _, slope = _cross_entropy(train.logits(weight, bias), train.target)
        gradient = train.rows.transpose(slope.reshape(len(slope), -1))
        optimiser.step([gradient.reshape(weight.shape), slope.sum(0)])
        accuracy = val.accuracy(weight, bias)
        better = accuracy > best_accuracy
        best_accuracy[better], best_step[better] = accuracy[better], step
        best_weight[:, better], best_bias[better] = weight[:, better], bias[better]
    return _Fit(best_weight, best_bias, best_accuracy, step=best_step)


def initial_layers(columns: int, classes: int, repeats: int, seed: int) -> tuple[Floats, Floats]:
    """Weights (d x R x C) and biases (R x C), uniform on +-1/sqrt(d): what ``torch.nn.Linear`` draws, R times."""
    generator = torch.Generator().manual_seed(seed)
    bound = columns**-0.5
    weight, bias = np.empty((columns, repeats, classes), np.float32), np.empty((repeats, classes), np.float32)
    for repeat in range(repeats):
        weight[:, repeat] = torch.empty(classes, columns).uniform_(-bound, bound, generator=generator).numpy().T
        bias[repeat] = torch.empty(classes).uniform_(-bound, bound, generator=generator).numpy()
    return weight, bias


class AdamW:
    """AdamW on numpy arrays, updated in place; the same numbers as ``torch.optim.AdamW``.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- (1 - lr wd) p - lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)
    """

    def __init__(self, parameters: Sequence[Floats], learning_rate: float, weight_decay: float) -> None:
        self.parameters, self.learning_rate, self.weight_decay = parameters, learning_rate, weight_decay
        self.momentum = [np.zeros_like(parameter) for parameter in parameters]
        self.variance = [np.zeros_like(parameter) for parameter in parameters]
        self.steps = 0

    def step(self, gradients: Sequence[Floats]) -> None:
        """One update from the gradients, given in the order of the parameters."""
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        self.steps += 1
        rate = self.learning_rate / (1 - beta1**self.steps)
        spread = (1 - beta2**self.steps) ** -0.5
        for p, m, v, g in zip(self.parameters, self.momentum, self.variance, gradients, strict=True):
            m += (1 - beta1) * (g - m)
            v *= beta2
            v += (1 - beta2) * g * g
            p *= 1 - self.learning_rate * self.weight_decay
            p -= rate * m / (np.sqrt(v) * spread + epsilon)


# ----------------------------------------------------------------------------------------------- logistic regression


def _fit_logreg(train: _Part, val: _Part, classes: int) -> _Fit:
    """The path of strengths: V and b in standardised coordinates, W = V / scale and b - mean W in raw ones."""
    mean, scale = train.rows.moments()
    size = train.rows.columns * classes

    def raw(point: NDArray[np.float64]) -> tuple[Floats, Floats]:
        weight = (point[:size].reshape(-1, classes) / scale[:, None]).astype(np.float32)
        return weight[:, None], (point[size:] - mean @ weight).astype(np.float32)[None]

    def objective(point: NDArray[np.float64], strength: float) -> tuple[float, NDArray[np.float64]]:
        loss, slope = _cross_entropy(train.logits(*raw(point)), train.target)
        bias_gradient = slope[:, 0].sum(0, dtype=np.float64)
        gradient = (train.rows.transpose(slope[:, 0]) - np.outer(mean, bias_gradient)) / scale[:, None]
        loss += strength / 2 * float(point[:size] @ point[:size])
        return loss, np.concatenate([gradient.ravel() + strength * point[:size], bias_gradient])

    point = np.concatenate([np.zeros(size), np.log(np.bincount(train.target) / len(train.target))])
    best, worse = _Fit(*raw(point), np.full(1, -1.0)), 0
    for strength in STRENGTHS:
        options = {"gtol": TOLERANCE, "ftol": 1e-9, "maxiter": 500}
        point = minimize(objective, point, (strength,), method="L-BFGS-B", jac=True, options=options).x
        accuracy = val.accuracy(*raw(point))
        worse = worse + 1 if accuracy < best.val_accuracy else 0
        if accuracy > best.val_accuracy:
            best = _Fit(*raw(point), accuracy, strength=strength)
        if worse == PATIENCE:
            break
    return best


def _cross_entropy(logits: Floats, target: Integers) -> tuple[float, Floats]:
    """Mean cross-entropy, summed over repeats, and its slope in the logits: N x R x C, N -> scalar, N x R x C."""
    nodes = np.arange(len(logits))
    slope = np.ascontiguousarray(logits.transpose(2, 0, 1))  # classes first: numpy reduces short last axes slowly
    slope -= slope.max(0)
    chosen = slope[target, nodes]
    np.exp(slope, out=slope)
    total = slope.sum(0)
    loss = (np.log(total) - chosen).mean(0, dtype=np.float64).sum()
    slope /= total
    slope[target, nodes] -= 1
    slope /= len(logits)
    return float(loss), np.ascontiguousarray(slope.transpose(1, 2, 0))


# ----------------------------------------------------------------------------------------- rows of bits or of floats


class _Rows(Protocol):
    """N rows of d columns, packed or float; all a linear probe ever asks of its input."""

    @property
    def columns(self) -> int: ...
    def __len__(self) -> int: ...
    def take(self, nodes: Integers) -> _Rows: ...
    def forward(self, weight: Floats, bias: Floats) -> Floats:
        """X W + b: d x C, C -> N x C."""

    def transpose(self, slope: Floats) -> Floats:
        """X^T S: N x C -> d x C."""

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What to subtract from each column and then divide by, before a penalty treats all columns alike."""


@dataclass(frozen=True)
class _BitRows:
    """Packed kernels at every size: BLAS on unpacked rows wins only where both take microseconds (140 x 64)."""

    packed: NDArray[np.uint8]
    columns: int

    def __len__(self) -> int:
        return len(self.packed)

    def take(self, nodes: Integers) -> _BitRows:
        return _BitRows(self.packed[nodes], self.columns)

    def forward(self, weight: Floats, bias: Floats) -> Floats:
        return linear(self.packed, weight, bias)

    def transpose(self, slope: Floats) -> Floats:
        return linear_transpose(self.packed, slope, self.columns)

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return ones_per_bit(self.packed, self.columns) / len(self), np.ones(self.columns)


@dataclass(frozen=True)
class _FloatRows:
    values: Floats

    @property
    def columns(self) -> int:
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return len(self.values)

    def take(self, nodes: Integers) -> _FloatRows:
        return _FloatRows(self.values[nodes])

    def forward(self, weight: Floats, bias: Floats) -> Floats:
        return self.values @ weight + bias

    def transpose(self, slope: Floats) -> Floats:
        return self.values.T @ slope

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean = self.values.mean(0, dtype=np.float64)
        scale = (self.values - mean.astype(np.float32)).std(0, dtype=np.float64)
        constant = scale <= 1e-6 * np.abs(mean)
        return mean, np.where(constant, 1.0, scale)


@dataclass(frozen=True)
class _Part:
    """The rows of one part of the split and the class index of each."""

    rows: _Rows
    target: Integers

    def logits(self, weight: Floats, bias: Floats) -> Floats:
        """d x R x C, R x C -> N x R x C."""
        return self.rows.forward(weight.reshape(len(weight), -1), bias.ravel()).reshape(-1, *bias.shape)

    def accuracy(self, weight: Floats, bias: Floats) -> NDArray[np.float64]:
        """d x R x C, R x C -> R."""
        hits = self.logits(weight, bias).argmax(2) == self.target[:, None]
        return np.asarray(hits.mean(0), np.float64)


def _blas_threads(rows: _Rows, classes: int) -> int | None:
    """One BLAS thread, unless a float product is worth more (None: as many as configured).

    Bits do their work in numba's threads, and small products finish sooner than a second thread wakes up: on a busy
    machine a pool that waits for its threads measured 2 to 15 times slower on the graphs of the paper up to PubMed.
    """
    return None if isinstance(rows, _FloatRows) and len(rows) * rows.columns * classes > 2**28 else 1


def _as_rows(embedding: Any, bits: int | None) -> _Rows:
    values = embedding.detach().cpu().numpy() if isinstance(embedding, torch.Tensor) else np.asarray(embedding)
    if bits is not None:
        return _BitRows(check_packed(values, bits), bits)
    if values.dtype == np.uint8:
        raise ConfigError("uint8 input means packed codes: say how many bits a code has (bits=...), or pass floats")
    if values.ndim != 2 or values.shape[1] == 0 or values.dtype.kind not in "fiub":
        raise FeatureError(f"an embedding is an N x d matrix of numbers, got {values.dtype} of shape {values.shape}")
    with np.errstate(over="ignore"):  # what is finite in 64 bits may not be in 32
        floats = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(floats).all():
        row = int(np.flatnonzero(~np.isfinite(floats).all(1))[0])
        raise FeatureError(
            f"embedding row {row} is not finite in 32 bits; scale it, or the method that made it diverged"
        )
    return _FloatRows(floats)


def check_labels(labels: Any, split: Split, count: int) -> tuple[Integers, Integers]:
    """The labels and the classes a probe can learn, or an error that says what is missing where."""
    values = check_parts(labels, split, count)
    classes = np.unique(values[split.train])
    if len(classes) == 1:
        raise LabelError(
            f"all training nodes have label {classes[0]}, and a classifier needs at least two classes; {WITHOUT}"
        )
    unseen = np.setdiff1d(values[np.concatenate([split.val, split.test])], classes)
    if len(unseen):
        raise LabelError(
            f"label {unseen[0]} is in the validation or test part but on no training node ({len(unseen)} such labels); "
            "give each a training node, or no split: one is then drawn from every class"
        )
    return values, classes


def check_parts(labels: Any, split: Split, count: int) -> Integers:
    """The labels, where training, validation and test have labelled nodes; else an error that says what is missing."""
    if labels is None:
        raise LabelError(f"a probe needs labels and the graph has none ({WITHOUT})")
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) != count or values.dtype.kind not in "iu":
        raise LabelError(f"a probe needs one integer label per node ({count}), got {values.dtype} of {values.shape}")
    for name, nodes in (("training", split.train), ("validation", split.val), ("test", split.test)):
        if len(nodes) == 0:
            raise LabelError(f"the split has no {name} nodes; judging needs all three (without a split, one is drawn)")
        if nodes[0] < 0 or nodes[-1] >= count:
            raise LabelError(f"{name} nodes run from {nodes[0]} to {nodes[-1]}, but the embedding has 0 to {count - 1}")
        if (values[nodes] < 0).any():
            raise LabelError(f"{name} node {nodes[values[nodes] < 0][0]} has no label; split labelled nodes only")
    return values.astype(np.int64)
