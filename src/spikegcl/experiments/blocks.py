"""How long a block should be: accuracy, memory and gradient norms of SpikeGCL by steps per block, from 1 to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spikegcl.experiments import Cell, Choice, Experiment, among, with_chosen
from spikegcl.experiments.gradients import END_TO_END, gradient_cell
from spikegcl.experiments.sweeps import ACCURACY, GAIN, UNTRAINED, Metric, curve, curve_table, panels

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.experiments.sweeps import Curve

TITLE = "SpikeGCL by steps per block"
GRAPHS = ("computers", "photo")
NEURONS = ("IF", "LIF, tau 2")  # those with a memory: without one, all lengths are the same training
LENGTHS = (1, 2, 4, 8, 16, 32)
QUICK_LENGTHS = (1, 4)
MEMORY = Metric("training memory (MB)", lambda result: result["training_mb"])
FIRST = Metric("gradient, first step", lambda result: result["gradient_norms"][0])
LAST = Metric("gradient, last step", lambda result: result["gradient_norms"][-1])


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for neuron in (NEURONS if among(("spikegcl",), choice.methods) else ())
        for group in _cells_of(neuron, dataset, choice).values()
        for cell in group.seeded(choice.seeds)
    ]


def _cells_of(neuron: str, dataset: str, choice: Choice) -> dict[float, Cell]:
    """By steps per block. Training end to end stands at the number of steps, or last where the graph decides it."""
    whole = gradient_cell(neuron, END_TO_END, dataset, choice)
    steps = whole.settings["steps"] or 2 * LENGTHS[-1]
    lengths = [length for length in (QUICK_LENGTHS if choice.quick else LENGTHS) if length < steps]
    return {**{length: gradient_cell(neuron, length, dataset, choice) for length in lengths}, steps: whole}


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    curves: dict[tuple[str, str], Curve] = {
        (dataset, neuron): points
        for dataset in with_chosen(GRAPHS, choice.datasets)
        for neuron in NEURONS
        if (points := curve(_cells_of(neuron, dataset, choice), rows))
    }
    notes = [
        "The last length of each is the whole sequence: training end to end.",
        "Training memory is what the epochs needed above the loaded graph. Gradient norms are means over epochs.",
    ]
    metrics = (ACCURACY, UNTRAINED, GAIN, MEMORY, FIRST, LAST)
    table = curve_table("blocks", TITLE, ("dataset", "neuron", "B"), curves, metrics, notes)
    figures = []
    for dataset in dict.fromkeys(dataset for dataset, _ in curves):
        here = {neuron: points for (name, neuron), points in curves.items() if name == dataset}
        shown = (ACCURACY, MEMORY, FIRST, LAST)
        figures.append(panels(f"blocks-{dataset}", dataset, "steps per block B", here, shown, even=True))
    return [table, *figures]


EXPERIMENTS = (Experiment("blocks", TITLE, cells, draw),)
