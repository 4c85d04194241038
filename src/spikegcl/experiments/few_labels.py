"""Label-scarce probes: accuracy of codes and embeddings when the probe sees 1, 5 or 20 labels per class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikegcl.baselines import SIGN, find_method
from spikegcl.experiments import Cell, Choice, Experiment, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import Figure, Table, curve_styles, over_seeds, plot_curves
from spikegcl.experiments.frontier import FLOORS, GRAPHS, line_style, takes_bits
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.experiments.rows import Rows

TITLE = "Test accuracy (%) by labels per class"
METHODS = ("spikegcl", "ppr-itq", "dgi")  # ours, the best closed form, floats
LABELS = (1, 5, 20)
DRAWS, QUICK_DRAWS = 10, 2
PLACES = (*map(str, LABELS), "all")

Curves = dict[str, dict[str, list[float]]]  # test accuracies of the seeds, by name and labels per class


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for method in _methods(choice)
        for cell in few_labels_cell(method, dataset, choice).seeded(choice.seeds)
    ]


def _methods(choice: Choice) -> list[str]:
    """Those chosen that train without labels; the floors come with SpikeGCL."""
    names = [name for name in choice.methods or METHODS if name not in FLOORS]
    return [name for name in names if SIGN not in name and find_method(name).unsupervised]


def few_labels_cell(method: str, dataset: str, choice: Choice) -> Cell:
    """With its settings for the dataset, but no epoch chosen by labels; closed forms as wide as SpikeGCL's codes."""
    changes: dict[str, Any] = {}
    if method == "spikegcl":
        changes["select"] = "last"
    elif takes_bits(method):
        codes = method_cell(measures.few_labels, "spikegcl", dataset, choice).settings
        changes |= {"bits": codes["steps"] * codes["channels"]} if codes["steps"] else {}
    draws = QUICK_DRAWS if choice.quick else DRAWS
    return method_cell(measures.few_labels, method, dataset, choice, changes, labels=list(LABELS), draws=draws)


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    lines, records, figures = [], [], []
    for dataset in with_chosen(GRAPHS, choice.datasets):
        curves = _curves(dataset, choice, rows)
        for name, curve in curves.items():
            spreads = {place: spread(curve[place]) for place in PLACES}
            seeds = len(curve["all"])
            lines.append([dataset, name, *(over_seeds(one["mean"], one["std"], seeds) for one in spreads.values())])
            records += [
                {"dataset": dataset, "method": name, "labels": place, "accuracy": one["mean"], "std": one["std"],
                 "seeds": seeds}
                for place, one in spreads.items()
            ]  # fmt: skip
        if curves:
            figures.append(_figure(dataset, curves))
    columns = ["dataset", "method", *(f"{place} per class" for place in map(str, LABELS)), "all labels"]
    notes = [
        f"Mean ± standard deviation over (seeds), each the mean of {QUICK_DRAWS if choice.quick else DRAWS} draws of "
        f"labels, the same for all methods. Probe: {choice.probe}; it chooses its strength on the split's validation "
        "nodes, whose labels are not counted.",
        "untrained and projection: SpikeGCL's floors, of as many bits. No method's training saw a label.",
    ]
    return [Table("few-labels", TITLE, columns, lines, records, notes), *figures]


def _curves(dataset: str, choice: Choice, rows: Rows) -> Curves:
    curves: Curves = {}
    for method in with_chosen(METHODS, _methods(choice)):
        names = {method, method + SIGN, *(FLOORS if method == "spikegcl" else ())}
        for result in rows.results(few_labels_cell(method, dataset, choice)):
            for place, accuracies in result["points"].items():
                for name in accuracies:
                    if name in names:
                        curves.setdefault(name, {}).setdefault(place, []).append(accuracies[name])
    return curves


def _figure(dataset: str, curves: Curves) -> Figure:
    def paint(canvas: Any) -> None:
        axes = canvas.subplots()
        placed = {
            name: {float(at): [100 * value for value in curve[place]] for at, place in enumerate(PLACES)}
            for name, curve in curves.items()
        }
        plot_curves(axes, placed, curve_styles(list(placed), line_style))
        axes.set_xticks(range(len(PLACES)), PLACES)
        axes.set_xlabel("labels per class")
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(dataset)
        canvas.legend(loc="outside lower center", ncols=3)

    return Figure(f"few-labels-{dataset}", paint, (3.4, 2.7))


EXPERIMENTS = (Experiment("few-labels", TITLE, cells, draw),)
