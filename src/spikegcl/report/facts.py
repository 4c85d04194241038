"""What the report says, as plain numbers: read from a run folder or computed from its codes; nothing is drawn here.

Everything that grows with the graph is sampled (the same nodes every time), so that a report costs a few seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import bits, energy
from spikegcl.datasets import make_split
from spikegcl.errors import RunError
from spikegcl.floors import projection
from spikegcl.graph import Split
from spikegcl.probes import linear_probe, majority_accuracy

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from spikegcl.codes import Codes
    from spikegcl.config import Config
    from spikegcl.graph import Graph
    from spikegcl.runs import Run

    Rows = NDArray[np.int64]

MAP_NODES = 2000  # more points hide each other at the size of a page
RASTER_NODES, RASTER_COLUMNS = 48, 960  # one pixel a bit on a desktop page
EXAMPLES, NEAREST = 6, 5
TRUNCATIONS = 5
CURVE_NODES = {"train": 1000, "val": 1000, "test": 12000}  # the probes of the curve take about a second at this size
CURVE_FLOOR_BITS = 2**25  # nodes x bits up to which the floor is computed once more for the curve (a second or two)


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy of the codes or of a floor: a value per seed, and the half width of its error bar."""

    name: str
    values: tuple[float, ...]
    error: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Curve:
    """Accuracy by number of steps kept; ``floor`` is the random projection at the same bits, where it was cheap."""

    steps: tuple[int, ...]
    bits: tuple[int, ...]
    trained: tuple[float, ...]
    floor: tuple[float, ...] | None
    sampled: bool


@dataclass(frozen=True)
class Judgement:
    """Everything that needs labels. The error bars are the deviation over seeds, or for a single seed the 95 % interval
    of an accuracy measured on ``tested`` nodes."""

    probe: str
    tested: int
    chance: float
    accuracies: tuple[Accuracy, ...]
    curve: Curve


@dataclass(frozen=True)
class Firing:
    """``rates`` of all bits, steps x channels; by step the bits that never fire and those that always do."""

    rates: NDArray[np.float64]
    dead: NDArray[np.int64]
    constant: NDArray[np.int64]


@dataclass(frozen=True)
class Raster:
    """Bits of some nodes, class by class: ``matrix`` is nodes x (steps * channels), the first channels of each step."""

    rows: Rows
    matrix: NDArray[np.uint8]
    channels: int


@dataclass(frozen=True)
class CodeMap:
    """Two principal components of some nodes' bits, and the share of the variance each explains."""

    rows: Rows
    points: NDArray[np.float64]
    shares: tuple[float, float]


@dataclass(frozen=True)
class Neighbour:
    row: int
    distance: int
    linked: bool


@dataclass(frozen=True)
class Example:
    row: int
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Facts:
    """All a page is made of."""

    graph: Graph
    graph_changed: bool
    config: Config
    seed: int
    codes: Codes
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    judgement: Judgement | None
    firing: Firing
    raster: Raster
    code_map: CodeMap
    examples: tuple[Example, ...]
    joules: dict[str, float]
    constants: energy.Constants

    def label(self, row: int) -> int:
        """The class of a node, -1 where unknown."""
        return -1 if self.graph.labels is None else int(self.graph.labels[row])

    def class_name(self, label: int) -> str:
        if label < 0:
            return "no label"
        return str(label) if self.graph.classes is None else str(self.graph.classes[label])


def gather(run: Run, graph: Graph) -> Facts:
    """Read and compute what the page of ``run`` shows."""
    codes, metrics = run.codes(), run.metrics
    if not np.array_equal(codes.ids, graph.ids):
        raise RunError(
            f"{run.path} has codes of {len(codes)} nodes that are not the {graph.num_nodes} of the graph it names; "
            "restore the files it was trained on"
        )
    labelled = graph.labels is not None and "test_accuracy" in metrics
    rows = _spread_over_classes(graph, RASTER_NODES)
    return Facts(
        graph=graph,
        graph_changed=graph.hash != run.graph_hash,
        config=run.config,
        seed=run.seed,
        codes=codes,
        metrics=metrics,
        history=_history(run.path / "log.jsonl"),
        judgement=_judge(codes, graph, metrics, run.seed) if labelled else None,
        firing=_firing(codes),
        raster=_raster(codes, _by_class(graph, rows)),
        code_map=_map(codes),
        examples=tuple(_example(codes, graph, int(row)) for row in rows[:EXAMPLES]),
        joules=energy.energies(energy.count(run.model()[0], graph, codes.packed)),
        constants=energy.PAPER,
    )


# ------------------------------------------------------------------------------------------------------ with labels


def _history(path: Path) -> list[dict[str, Any]]:
    """A record an epoch."""
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it, or train the run again") from None


def _judge(codes: Codes, graph: Graph, metrics: dict[str, Any], seed: int) -> Judgement:
    split = make_split(graph, seed)
    rows, tested = metrics["rows"], len(split.test)
    values = {"trained": tuple(row["test_accuracy"] for row in rows)}
    for floor in metrics["floors"]:
        values[floor] = tuple(row["floors"][floor]["test_accuracy"] for row in rows)
    return Judgement(
        probe=metrics["probe"],
        tested=tested,
        chance=majority_accuracy(graph.labels, split),
        accuracies=tuple(Accuracy(name, of, _error(of, tested)) for name, of in values.items()),
        curve=_curve(codes, graph, split, seed),
    )


def _error(values: tuple[float, ...], tested: int) -> float:
    if len(values) > 1:
        return float(np.std(values, ddof=1))
    return 1.96 * float(np.sqrt(values[0] * (1 - values[0]) / tested))


def _curve(codes: Codes, graph: Graph, split: Split, seed: int) -> Curve:
    judged = _sample_split(graph, split)
    kept = truncations(codes.steps)
    floor = None
    if len(codes) * codes.bits <= CURVE_FLOOR_BITS:
        # Its columns are drawn independently, so the first bits of a wide projection are a narrow one.
        untrained = type(codes)(projection(graph, codes.bits, seed), codes.ids, codes.steps, codes.channels)
        floor = tuple(_probe(untrained.truncate(steps), graph, judged) for steps in kept)
    return Curve(
        steps=kept,
        bits=tuple(steps * codes.channels for steps in kept),
        trained=tuple(_probe(codes.truncate(steps), graph, judged) for steps in kept),
        floor=floor,
        sampled=judged is not split,
    )


def truncations(steps: int) -> tuple[int, ...]:
    """At most five numbers of steps from 1 to all, about evenly spaced on a logarithmic axis.

    >>> truncations(15)
    (1, 2, 4, 8, 15)
    """
    return tuple(sorted({round(value) for value in np.geomspace(1, steps, TRUNCATIONS).tolist()}))


def _probe(codes: Codes, graph: Graph, split: Split) -> float:
    return linear_probe(codes.packed, graph.labels, split, kind="logreg", bits=codes.bits).test_accuracy


def _sample_split(graph: Graph, split: Split) -> Split:
    """A part of each part where it is large. Classes that lost all training nodes leave the other parts too."""
    parts = {part: getattr(split, part) for part in CURVE_NODES}
    if graph.labels is None or all(len(nodes) <= CURVE_NODES[part] for part, nodes in parts.items()):
        return split
    rng = np.random.default_rng(0)
    chosen = {part: rng.permutation(nodes)[: CURVE_NODES[part]] for part, nodes in parts.items()}
    known = np.isin(graph.labels, graph.labels[chosen["train"]])
    return Split(**{part: nodes[known[nodes]] for part, nodes in chosen.items()})


# ------------------------------------------------------------------------------------------------------- codes alone


def _firing(codes: Codes) -> Firing:
    by_step = bits.ones_per_bit(codes.packed, codes.bits).reshape(codes.steps, codes.channels)
    return Firing(by_step / len(codes), (by_step == 0).sum(1), (by_step == len(codes)).sum(1))


def _spread_over_classes(graph: Graph, count: int) -> Rows:
    """Some nodes, taking turns over the classes: the first of each class in random order, then the second, ..."""
    rows = np.random.default_rng(0).permutation(graph.num_nodes)
    if graph.labels is None:
        return rows[:count]
    order = np.argsort(graph.labels[rows], kind="stable")
    _, starts, sizes = np.unique(graph.labels[rows][order], return_index=True, return_counts=True)
    turn = np.empty(len(rows), np.int64)
    turn[order] = np.arange(len(rows)) - np.repeat(starts, sizes)
    return rows[np.lexsort((graph.labels[rows], turn))][:count]


def _by_class(graph: Graph, rows: Rows) -> Rows:
    return np.sort(rows) if graph.labels is None else rows[np.argsort(graph.labels[rows], kind="stable")]


def _raster(codes: Codes, rows: Rows) -> Raster:
    channels = min(codes.channels, max(1, RASTER_COLUMNS // codes.steps))
    spikes = codes[rows].to_numpy().reshape(len(rows), codes.steps, codes.channels)[:, :, :channels]
    return Raster(rows, spikes.reshape(len(rows), -1), channels)


def _map(codes: Codes) -> CodeMap:
    from sklearn.decomposition import PCA

    rows = np.sort(np.random.default_rng(0).permutation(len(codes))[:MAP_NODES])
    matrix = codes[rows].to_numpy().astype(np.float32)
    points, shares = np.zeros((len(rows), 2)), np.zeros(2)
    # Codes that are all alike have no direction to draw: they stay one point.
    if (matrix != matrix[0]).any():
        number = min(2, *matrix.shape)
        fitted = PCA(number, random_state=0)
        points[:, :number] = fitted.fit_transform(matrix)
        shares[:number] = fitted.explained_variance_ratio_
    return CodeMap(rows, points, (float(shares[0]), float(shares[1])))


def _example(codes: Codes, graph: Graph, row: int) -> Example:
    distances = codes[row].hamming(codes)[0]
    nearest = [other for other in np.argsort(distances, kind="stable")[: NEAREST + 1].tolist() if other != row]
    linked = set(graph.indices[graph.indptr[row] : graph.indptr[row + 1]].tolist())
    return Example(row, tuple(Neighbour(r, int(distances[r]), r in linked) for r in nearest[:NEAREST]))
