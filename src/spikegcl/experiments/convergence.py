"""Figure 8 of the paper: accuracy by epochs and by seconds of training, SpikeGCL and the full-precision methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import Figure, plot_curves
from spikegcl.experiments.sweeps import ACCURACY, UNTRAINED, curve, curve_table
from spikegcl.experiments.time_steps import SECONDS
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.experiments.sweeps import Curve

TITLE = "Convergence: accuracy by epochs of training (the paper's Figure 8)"
METHODS = ("spikegcl", "dgi", "grace", "ggd", "cca-ssg", "bgrl", "sugrl")
GRAPHS = ("computers",)
EPOCHS = (0, 1, 2, 5, 10, 20, 50, 100)
QUICK_EPOCHS = (0, 1, 5)


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for method in among(METHODS, choice.methods)
        for group in _cells_of(method, dataset, choice).values()
        for cell in group.seeded(choice.seeds)
    ]


def _cells_of(method: str, dataset: str, choice: Choice) -> dict[float, Cell]:
    """By epochs: a training of its own for each. SpikeGCL shows its last epoch, not the best by validation labels."""
    last = {"select": "last"} if method == "spikegcl" else {}
    epochs = QUICK_EPOCHS if choice.quick else EPOCHS
    return {
        count: method_cell(measures.accuracy, method, dataset, choice, {"epochs": count, **last}) for count in epochs
    }


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    curves: dict[tuple[str, str], Curve] = {
        (dataset, method): points
        for dataset in with_chosen(GRAPHS, choice.datasets)
        for method in METHODS
        if (points := curve(_cells_of(method, dataset, choice), rows))
    }
    notes = [
        "Every point is a training of its own with that many epochs, schedules included. Zero epochs: the encoder as "
        "initialised; 'untrained' of SpikeGCL has besides the running statistics that as many epochs give.",
    ]
    metrics = (ACCURACY, UNTRAINED, SECONDS)
    table = curve_table("convergence", TITLE, ("dataset", "method", "epochs"), curves, metrics, notes)
    figures = [
        _figure(dataset, {method: points for (name, method), points in curves.items() if name == dataset})
        for dataset in dict.fromkeys(dataset for dataset, _ in curves)
    ]
    return [table, *figures]


def _figure(dataset: str, curves: dict[str, Curve]) -> Figure:
    places = sorted({epochs for points in curves.values() for epochs in points})

    def paint(canvas: Any) -> None:
        above, below = canvas.subplots(2, 1)
        by_epochs = {
            name: {float(places.index(epochs)): ACCURACY.values(results) for epochs, results in points.items()}
            for name, points in curves.items()
        }
        by_seconds = {
            name: {
                spread(SECONDS.values(results))["mean"]: ACCURACY.values(results)
                for epochs, results in points.items()
                if epochs
            }
            for name, points in curves.items()
        }
        plot_curves(above, by_epochs)
        plot_curves(below, by_seconds)
        above.set_xticks(range(len(places)), [f"{epochs:g}" for epochs in places])
        above.set_xlabel("epochs")
        below.set_xscale("log")
        below.set_xlabel("seconds of training")
        for axes in (above, below):
            axes.set_ylabel("test accuracy (%)")
        above.set_title(dataset)
        canvas.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=4)

    return Figure(f"convergence-{dataset}", paint, (3.4, 4.0))


EXPERIMENTS = (Experiment("convergence", TITLE, cells, draw),)
