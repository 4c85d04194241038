"""Figure 7 of the paper: accuracy and sparsity of SpikeGCL by firing threshold, beside the untrained encoder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.sweeps import ACCURACY, GAIN, UNTRAINED, Metric, curve_table, curves_of, panels, swept_cells

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows

TITLE = "SpikeGCL by firing threshold (the paper's Figure 7)"
GRAPHS = ("computers", "photo", "cs", "physics")
THRESHOLDS = (5e-4, 5e-3, 5e-2, 5e-1, 1.0)
QUICK_THRESHOLDS = (5e-4, 5e-2, 1.0)
SPARSITY = Metric("sparsity (% zeros)", lambda result: 100 * (1 - result["firing_rate"]))


def cells(choice: Choice) -> list[Cell]:
    methods = among(("spikegcl",), choice.methods)
    return swept_cells(partial(_cells_of, choice), choice.datasets or GRAPHS, methods, choice.seeds)


def _cells_of(choice: Choice, dataset: str, method: str) -> dict[float, Cell]:
    """By threshold."""
    thresholds = QUICK_THRESHOLDS if choice.quick else THRESHOLDS
    return {
        value: method_cell(measures.accuracy, method, dataset, choice, {"threshold": value}) for value in thresholds
    }


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    curves = curves_of(partial(_cells_of, choice), with_chosen(GRAPHS, choice.datasets), ("spikegcl",), rows)
    notes = ["'untrained' has the same threshold, 'gain' is the difference. Sparsity is the share of bits that are 0."]
    metrics = (ACCURACY, UNTRAINED, GAIN, SPARSITY)
    table = curve_table("thresholds", TITLE, ("dataset", "method", "threshold"), curves, metrics, notes)
    shown = (ACCURACY, GAIN, SPARSITY)
    own = {dataset: points for (dataset, _), points in curves.items()}
    figure = panels("thresholds", "SpikeGCL", "firing threshold", own, shown, columns=1, even=True)
    return [table, figure] if curves else [table]


EXPERIMENTS = (Experiment("thresholds", TITLE, cells, draw),)
