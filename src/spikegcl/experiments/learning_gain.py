"""What training adds: accuracy of a method minus that of its own encoder before training, seed by seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spikegcl.baselines import find_method
from spikegcl.experiments import Cell, Choice, Experiment, with_chosen
from spikegcl.experiments.accuracy import accuracy_cell
from spikegcl.experiments.drawings import COLOURS, Figure, Table, plain_table
from spikegcl.experiments.frontier import BITS, GRAPHS, QUICK_BITS, code_cell
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spikegcl.experiments.rows import Rows

TITLE = "Learning gain: points of test accuracy that training adds to the untrained encoder"
CONFIDENCE = 0.95
OTHER_WIDTH = "other width"  # codes of SpikeGCL with other numbers of bits than the published ones


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for method in (_chosen(choice) if choice.methods else ("spikegcl",))
        for dataset in choice.datasets or GRAPHS
        for group in _cells_of(method, dataset, choice)
        for cell in group.seeded(choice.seeds)
    ]


def _chosen(choice: Choice) -> list[str]:
    """Those of the chosen methods that train without labels: they have an untrained encoder to compare with."""
    return [name for name in choice.methods if find_method(name).unsupervised]


def _cells_of(method: str, dataset: str, choice: Choice) -> list[Cell]:
    """With its settings for the dataset; SpikeGCL also with codes of other widths."""
    widths = () if method != "spikegcl" else QUICK_BITS if choice.quick else BITS
    return [accuracy_cell(method, dataset, choice), *(code_cell(dataset, bits, choice) for bits in widths)]


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    records = []
    datasets = with_chosen(GRAPHS, choice.datasets)
    for method in with_chosen(("spikegcl",), _chosen(choice)):
        for dataset in datasets:
            for number, cell in enumerate(_cells_of(method, dataset, choice)):
                results = [result for result in rows.results(cell) if "untrained" in result["floors"]]
                if results:
                    settings = cell.preset if number == 0 else f"{cell.preset}, {OTHER_WIDTH}"
                    records.append({"method": method, "dataset": dataset, "settings": settings, **gain(results)})
    notes = [
        f"Seed by seed: same split, same initial weights, same probe. Interval: {100 * CONFIDENCE:.0f} %, from "
        "Student's t over seeds; it needs two of them. Accuracies in %, gains in points.",
        "The trained encoder is that of the epoch with the best validation accuracy, as the authors choose it; the "
        "untrained one has no such choice.",
        f"'{OTHER_WIDTH}': other steps and channels than the preset's, and a calibrated threshold.",
    ]
    drawings: list[Table | Figure] = [plain_table("learning-gain", TITLE, records, notes, decimals=2)]
    own = [record for record in records if OTHER_WIDTH not in record["settings"]]
    if own:
        drawings.append(Figure("learning-gain", lambda canvas: _paint(canvas, own), (3.4, 0.8 + 0.2 * len(own))))
    by_bits = {name: [one for one in records if one["dataset"] == name and one not in own] for name in datasets}
    panels = {name: widths for name, widths in by_bits.items() if widths}
    if panels:
        size = (3.4, 0.6 + 1.1 * -(-len(panels) // 2))
        drawings.append(Figure("learning-gain-bits", lambda canvas: _paint_bits(canvas, panels), size))
    return drawings


def gain(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Trained and untrained accuracy in %, their difference in points, and its confidence interval."""
    trained = [100 * result["test_accuracy"] for result in results]
    untrained = [100 * result["floors"]["untrained"]["test_accuracy"] for result in results]
    difference = spread(after - before for after, before in zip(trained, untrained))
    half = _half_interval(difference["std"], len(results))
    return {
        "bits": results[0].get("bits"),
        "dimensions": results[0].get("dimensions"),
        "seeds": len(results),
        "trained": spread(trained)["mean"],
        "untrained": spread(untrained)["mean"],
        "gain": difference["mean"],
        "from": None if half is None else difference["mean"] - half,
        "to": None if half is None else difference["mean"] + half,
    }


def _half_interval(std: float, count: int) -> float | None:
    if count < 2:
        return None
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, count - 1) * std / math.sqrt(count))


def _paint(canvas: Any, records: list[dict[str, Any]]) -> None:
    axes = canvas.subplots()
    labels = [f"{record['method']}, {record['dataset']}" for record in records]
    for height, record in enumerate(records):
        half = 0.0 if record["to"] is None else record["to"] - record["gain"]
        axes.errorbar(record["gain"], height, xerr=half, fmt="o", color=COLOURS[0], capsize=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel(f"gain (points), {100 * CONFIDENCE:.0f} % interval")


def _paint_bits(canvas: Any, panels: dict[str, list[dict[str, Any]]]) -> None:
    """A panel for every dataset: the gain of SpikeGCL by bits per node, with its interval."""
    grid = canvas.subplots(-(-len(panels) // 2), 2, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (dataset, records) in zip(grid, panels.items(), strict=False):
        halves = [0.0 if record["to"] is None else record["to"] - record["gain"] for record in records]
        bits, gains = zip(*((record["bits"], record["gain"]) for record in records), strict=True)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.errorbar(bits, gains, yerr=halves, fmt="o-", color=COLOURS[0], capsize=2)
        axes.set_title(dataset, fontsize=8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(BITS[::2], [str(width) for width in BITS[::2]])
    for axes in grid[len(panels) - 2 : len(panels)]:
        axes.tick_params(labelbottom=True)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    canvas.supxlabel("bits per node", fontsize=8)
    canvas.supylabel(f"gain (points), {100 * CONFIDENCE:.0f} % interval", fontsize=8)


EXPERIMENTS = (Experiment("learning-gain", TITLE, cells, draw),)
