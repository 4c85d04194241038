"""How long a block should be: accuracy, memory and gradient norms of SpikeGCL by steps per block, from 1 to all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spikegcl.experiments import Cell, Choice, Experiment, among, with_chosen
from spikegcl.experiments.gradients import END_TO_END, gradient_cell
from spikegcl.experiments.sweeps import (
    ACCURACY,
    GAIN,
    UNTRAINED,
    Metric,
    by_dataset,
    curve_table,
    curves_of,
    panels,
    swept_cells,
)

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows

TITLE = "SpikeGCL by steps per block"
GRAPHS = ("computers", "photo")
NEURONS = ("IF", "LIF, tau 2")  # those with a memory: without one, all lengths are the same training
LENGTHS = (1, 2, 4, 8, 16, 32)
QUICK_LENGTHS = (1, 4)
MEMORY = Metric("training memory (MB)", lambda result: result["training_mb"])
FIRST = Metric("gradient norm, step 1", lambda result: result["gradient_norms"][0])
LAST = Metric("gradient norm, step T", lambda result: result["gradient_norms"][-1])


def cells(choice: Choice) -> list[Cell]:
    neurons = NEURONS if among(("spikegcl",), choice.methods) else ()
    return swept_cells(partial(_cells_of, choice), choice.datasets or GRAPHS, neurons, choice.seeds)


def _cells_of(choice: Choice, dataset: str, neuron: str) -> dict[float, Cell]:
    """By steps per block. Training end to end stands at the number of steps, or last where the graph decides it."""
    whole = gradient_cell(neuron, END_TO_END, dataset, choice)
    steps = whole.settings["steps"] or 2 * LENGTHS[-1]
    lengths = [length for length in (QUICK_LENGTHS if choice.quick else LENGTHS) if length < steps]
    return {**{length: gradient_cell(neuron, length, dataset, choice) for length in lengths}, steps: whole}


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    curves = curves_of(partial(_cells_of, choice), with_chosen(GRAPHS, choice.datasets), NEURONS, rows)
    notes = [
        "The last length of each is the whole sequence: training end to end.",
        "Training memory is how far the peak of the process rose from the loaded graph to the last epoch. Libraries, "
        "set-up and the evaluation after every epoch are in it and hide how little short blocks need. Gradient norms "
        "are means over epochs.",
    ]
    metrics = (ACCURACY, UNTRAINED, GAIN, MEMORY, FIRST, LAST)
    table = curve_table("blocks", TITLE, ("dataset", "neuron", "B"), curves, metrics, notes)
    shown = (ACCURACY, MEMORY, FIRST, LAST)
    figures = [
        panels(f"blocks-{dataset}", dataset, "steps per block B", here, shown, even=True)
        for dataset, here in by_dataset(curves).items()
    ]
    return [table, *figures]


EXPERIMENTS = (Experiment("blocks", TITLE, cells, draw),)
