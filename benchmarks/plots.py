"""Pictures of the speed benchmarks, drawn from results/performance/*.json beside them.

python -m benchmarks.plots
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.parts import PARTS
from benchmarks.run import GRAPHS, NAMES, RESULTS, SIDES, geometric, medians
from spikegcl.experiments.drawings import COLOURS, Figure, write_drawings

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_of(name: str) -> list[dict]:
    path = RESULTS / f"{name}.json"
    rows: list[dict] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def epochs(rows: Sequence[dict]) -> Figure:
    """How many times longer the comparator takes, for an epoch and for embedding; of graphs with all sides."""
    graphs = [graph for graph in GRAPHS if {row["side"] for row in rows if row["graph"] == graph} == set(SIDES)]

    def paint(canvas: Any) -> None:
        for axes, what, title in zip(
            canvas.subplots(1, 2, sharey=True), ("epoch_seconds", "embed_seconds"), ("training epoch", "embedding")
        ):
            for number, side in enumerate(SIDES[1:]):
                ratios = [medians(rows, graph, side)[what] / medians(rows, graph, "ours")[what] for graph in graphs]
                values = [*ratios, geometric(ratios)]
                places = [place + 0.4 * number for place in range(len(values))]
                bars = axes.barh(places, values, 0.38, color=COLOURS[number], label=NAMES[side])
                axes.bar_label(bars, fmt="%.1f", padding=2, size=6)
            axes.set(xscale="log", xlim=(1, 80), xlabel="times our seconds", title=title)
            _plain(axes.xaxis, (1, 2, 5, 10, 20, 50))
            axes.set_axisbelow(True)
            axes.grid(axis="y", visible=False)
            axes.set_yticks([place + 0.2 for place in range(len(graphs) + 1)], [*graphs, "geometric mean"])
        canvas.axes[0].invert_yaxis()
        canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)

    return Figure("epochs", paint, (5.4, 3.4))


def growth(rows: Sequence[dict]) -> Figure:
    """Seconds per epoch and memory against the number of nodes, with a line of slope one."""

    def paint(canvas: Any) -> None:
        left, right = canvas.subplots(1, 2)
        made = [row for row in rows if row["graph"].startswith("sbm")]
        real = [row for row in rows if row not in made]
        for axes, label, value in (
            (left, "seconds per epoch", lambda row: statistics.median(row["epoch_seconds"])),
            (right, "process peak, GB", lambda row: row["peak_mb"] / 1024),
        ):
            places = [row["nodes"] for row in made]
            axes.plot(places, list(map(value, made)), "o-", color=COLOURS[0], label="sbm, degree 15, T = 8")
            for row in real:
                axes.plot(row["nodes"], value(row), "D", color=COLOURS[1], label=f"{row['graph']}, T = {row['steps']}")
            axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel=label)
        _plain(left.yaxis, (0.1, 1, 10))
        _plain(right.yaxis, (0.5, 1, 2, 5))
        per_node = statistics.median(made[0]["epoch_seconds"]) / made[0]["nodes"]
        left.plot(places, [per_node * nodes for nodes in places], ":", color="black", label="linear")
        canvas.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return Figure("growth", paint, (5.0, 2.6))


def bandwidth(rows: Sequence[dict]) -> Figure:
    """Where an epoch goes, in percent."""

    def paint(canvas: Any) -> None:
        axes = canvas.subplots()
        for place, row in enumerate(rows):
            start = 0.0
            for number, part in enumerate([*PARTS, "rest"]):
                share = 100 * row["parts"][part] / row["epoch_seconds"]
                colour = "#bbbbbb" if part == "rest" else COLOURS[number]
                axes.barh(place, share, 0.6, start, color=colour, label=None if place else part)
                start += share
        axes.set(xlim=(0, 100), xlabel="percent of an epoch")
        axes.set_yticks(range(len(rows)), [f"{row['graph']}, {row['epoch_seconds']:.1f} s" for row in rows])
        axes.grid(visible=False)
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return Figure("bandwidth", paint, (4.6, 2.2))


def _plain(axis: Any, ticks: Sequence[float]) -> None:
    """These ticks of a logarithmic axis, as ordinary numbers."""
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def main() -> None:
    measured = ((figure, rows_of(figure.__name__)) for figure in (epochs, growth, bandwidth))
    for path in write_drawings((figure(rows) for figure, rows in measured if rows), RESULTS):
        print(path.name)


if __name__ == "__main__":
    main()
