"""Figure 8 of the paper: accuracy by epochs and by seconds of training, SpikeGCL and the full-precision methods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import Figure, curve_styles, plot_curves
from spikegcl.experiments.sweeps import (
    ACCURACY,
    PACE,
    PACE_NOTE,
    UNTRAINED,
    by_dataset,
    curve_table,
    curves_of,
    pace_cells,
    swept_cells,
    with_pace,
)

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.experiments.sweeps import Curve

TITLE = "Convergence: accuracy by epochs of training (the paper's Figure 8)"
METHODS = ("spikegcl", "dgi", "grace", "ggd", "cca-ssg", "bgrl", "sugrl")
GRAPHS = ("computers",)
EPOCHS = (0, 1, 2, 5, 10, 20, 50, 100)
QUICK_EPOCHS = (0, 1, 5)
FLOOR = "spikegcl, untrained"


def cells(choice: Choice) -> list[Cell]:
    grid = partial(_cells_of, choice), choice.datasets or GRAPHS, among(METHODS, choice.methods)
    swept = swept_cells(*grid, choice.seeds)
    return [*swept, *pace_cells(swept)]


def _cells_of(choice: Choice, dataset: str, method: str) -> dict[float, Cell]:
    """By epochs: a training of its own for each, up to as many as the method has in the tables of accuracy.

    SpikeGCL shows its last epoch, not the best by validation labels.
    """
    last = {"select": "last"} if method == "spikegcl" else {}
    own = method_cell(measures.accuracy, method, dataset, choice).settings["epochs"]
    epochs = QUICK_EPOCHS if choice.quick else (*EPOCHS, *([own] if own > EPOCHS[-1] else []))
    return {
        count: method_cell(measures.accuracy, method, dataset, choice, {"epochs": count, **last}) for count in epochs
    }


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    sweep = partial(_cells_of, choice)
    curves = with_pace(curves_of(sweep, with_chosen(GRAPHS, choice.datasets), METHODS, rows), sweep, rows)
    notes = [
        "Every point is a training of its own with that many epochs, schedules included. Zero epochs: the encoder as "
        "initialised; 'untrained' of SpikeGCL has besides the running statistics that as many epochs give.",
        f"{PACE_NOTE} Times in the figure are epochs times seconds per epoch.",
        "A method with more epochs in the tables of accuracy ends with these.",
    ]
    metrics = (ACCURACY, UNTRAINED, PACE)
    table = curve_table("convergence", TITLE, ("dataset", "method", "epochs"), curves, metrics, notes)
    return [table, *(_figure(dataset, here) for dataset, here in by_dataset(curves).items())]


def _figure(dataset: str, curves: dict[str, Curve]) -> Figure:
    places = sorted({epochs for points in curves.values() for epochs in points})

    def paint(canvas: Any) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        above, below = canvas.subplots(2, 1)
        by_epochs = {
            name: {float(places.index(epochs)): ACCURACY.values(results) for epochs, results in points.items()}
            for name, points in curves.items()
        }
        if "spikegcl" in curves:
            floor = {place: UNTRAINED.values(results) for place, results in curves["spikegcl"].items()}
            by_epochs[FLOOR] = {float(places.index(place)): values for place, values in floor.items() if values}
        by_seconds = {
            name: {
                epochs * PACE.values(results)[0]: ACCURACY.values(results)
                for epochs, results in points.items()
                if epochs and PACE.values(results)
            }
            for name, points in curves.items()
        }
        styles = curve_styles(list(by_epochs), lambda name: "--" if name == FLOOR else "-")
        plot_curves(above, by_epochs, styles)
        plot_curves(below, by_seconds, styles)
        above.set_xticks(range(len(places)), [f"{epochs:g}" for epochs in places])
        above.set_xlabel("epochs (not to scale)")
        below.set_xscale("log")
        below.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        below.xaxis.set_major_formatter("{x:g}")
        below.xaxis.set_minor_locator(NullLocator())
        below.set_xlabel("seconds of training, one thread")
        for axes in (above, below):
            axes.set_ylabel("test accuracy (%)")
        above.set_title(dataset)
        canvas.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return Figure(f"convergence-{dataset}", paint, (3.4, 4.2))


EXPERIMENTS = (Experiment("convergence", TITLE, cells, draw),)
