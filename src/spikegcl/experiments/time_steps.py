"""Figures 4, 6 and 9 of the paper: accuracy, training time, memory and energy of the graph SNNs by time steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spikegcl.energy import RULES
from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.sweeps import (
    ACCURACY,
    PACE,
    PACE_NOTE,
    UNTRAINED,
    Metric,
    by_dataset,
    curve_table,
    curves_of,
    pace_cells,
    panels,
    reasons,
    swept_cells,
    with_pace,
)

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows

TITLE = "Graph SNNs by number of time steps (the paper's Figures 4, 6 and 9)"
METHODS = ("spikegcl", "gc-snn", "ga-snn", "spikenet", "spiking-gcn")
GRAPHS = ("computers", "photo", "cs", "physics")
STEPS = (5, 10, 15, 20, 25, 30)
QUICK_STEPS = (5, 10)
MEMORY = Metric("peak memory (GB)", lambda result: result["peak_mb"] / 2**10)
ENERGIES = {
    rule: Metric(f"energy, {rule} (mJ)", lambda result, rule=rule: 1e3 * result["energy"][rule])  # type: ignore[misc]
    for rule in RULES
}
SHOWN = (ACCURACY, PACE, MEMORY, Metric("spike energy (mJ)", ENERGIES["paper-spikes"].read))


def cells(choice: Choice) -> list[Cell]:
    grid = partial(_cells_of, choice), choice.datasets or GRAPHS, among(METHODS, choice.methods)
    swept = swept_cells(*grid, choice.seeds)
    return [*swept, *pace_cells(swept)]


def _cells_of(choice: Choice, dataset: str, method: str) -> dict[float, Cell]:
    """By number of steps."""
    steps = QUICK_STEPS if choice.quick else STEPS
    return {count: method_cell(measures.accuracy, method, dataset, choice, {"steps": count}) for count in steps}


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    sweep, datasets = partial(_cells_of, choice), with_chosen(GRAPHS, choice.datasets)
    curves = with_pace(curves_of(sweep, datasets, METHODS, rows), sweep, rows)
    notes = [
        "Memory is the largest resident size of the cell's process, which trains, probes and, for SpikeGCL, makes its "
        "floors.",
        PACE_NOTE,
        "Energy by the rules of docs/energy.md; figures show paper-spikes.",
        "Everything but the number of steps is as in the preset.",
        *reasons(sweep, datasets, METHODS, rows),
    ]
    metrics = (ACCURACY, UNTRAINED, PACE, MEMORY, *ENERGIES.values())
    table = curve_table("time-steps", TITLE, ("dataset", "method", "T"), curves, metrics, notes)
    own = {dataset: points for (dataset, method), points in curves.items() if method == "spikegcl"}
    figures = [panels("time-steps-spikegcl", "SpikeGCL", "time steps T", own, SHOWN)] if own else []
    for dataset, here in by_dataset(curves).items():
        figures.append(panels(f"time-steps-{dataset}", dataset, "time steps T", here, SHOWN))
    return [table, *figures]


EXPERIMENTS = (Experiment("time-steps", TITLE, cells, draw),)
