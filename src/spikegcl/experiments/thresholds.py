"""Figure 7 of the paper: accuracy and sparsity of SpikeGCL by firing threshold, beside the untrained encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.sweeps import ACCURACY, GAIN, UNTRAINED, Metric, curve, curve_table, panels

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.experiments.sweeps import Curve

TITLE = "SpikeGCL by firing threshold (the paper's Figure 7)"
GRAPHS = ("computers", "photo", "cs", "physics")
THRESHOLDS = (5e-4, 5e-3, 5e-2, 5e-1, 1.0)
QUICK_THRESHOLDS = (5e-4, 5e-2, 1.0)
SPARSITY = Metric("sparsity (% zeros)", lambda result: 100 * (1 - result["firing_rate"]))


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for _ in among(("spikegcl",), choice.methods)
        for group in _cells_of(dataset, choice).values()
        for cell in group.seeded(choice.seeds)
    ]


def _cells_of(dataset: str, choice: Choice) -> dict[float, Cell]:
    """By threshold."""
    thresholds = QUICK_THRESHOLDS if choice.quick else THRESHOLDS
    return {
        value: method_cell(measures.accuracy, "spikegcl", dataset, choice, {"threshold": value}) for value in thresholds
    }


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    curves: dict[str, Curve] = {
        dataset: points
        for dataset in with_chosen(GRAPHS, choice.datasets)
        if (points := curve(_cells_of(dataset, choice), rows))
    }
    notes = ["'untrained' has the same threshold, 'gain' is the difference. Sparsity is the share of bits that are 0."]
    keyed = {(dataset, "spikegcl"): points for dataset, points in curves.items()}
    metrics = (ACCURACY, UNTRAINED, GAIN, SPARSITY)
    table = curve_table("thresholds", TITLE, ("dataset", "method", "threshold"), keyed, metrics, notes)
    shown = (ACCURACY, GAIN, SPARSITY)
    figure = panels("thresholds", "SpikeGCL", "firing threshold", curves, shown, columns=1, even=True)
    return [table, figure] if curves else [table]


EXPERIMENTS = (Experiment("thresholds", TITLE, cells, draw),)
