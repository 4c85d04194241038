"""Rows of cells that differ in one number, as a table and as panels with a curve for every series."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from spikegcl.experiments import measures
from spikegcl.experiments.drawings import Figure, Table, measured, plot_curves
from spikegcl.experiments.rows import DONE
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spikegcl.experiments import Cell
    from spikegcl.experiments.rows import Rows

    Sweep = Callable[[str, str], Mapping[float, Cell]]  # dataset and series -> cells by place on the x axis

Curve = dict[float, list[dict[str, Any]]]  # results of the seeds, by place on the x axis
Curves = dict[tuple[str, str], Curve]  # by dataset and series


class Metric(NamedTuple):
    """A number of a result: heading of its column and axis, with the unit, and how it is read (None: not there).

    ``common``: all seeds have the same, so that it has no deviation.
    """

    heading: str
    read: Callable[[dict[str, Any]], float | None]
    common: bool = False

    def values(self, results: Sequence[dict[str, Any]]) -> list[float]:
        found = [value for value in map(self.read, results) if value is not None]
        return found[:1] if self.common else found


def _untrained(result: dict[str, Any]) -> float | None:
    floor = result["floors"].get("untrained")
    return None if floor is None else 100 * float(floor["test_accuracy"])


def _gain(result: dict[str, Any]) -> float | None:
    floor = _untrained(result)
    return None if floor is None else 100 * float(result["test_accuracy"]) - floor


ACCURACY = Metric("test accuracy (%)", lambda result: 100 * result["test_accuracy"])
UNTRAINED = Metric("untrained (%)", _untrained)
GAIN = Metric("gain (points)", _gain)
PACE = Metric("seconds per epoch", lambda result: result.get("epoch_seconds"), common=True)
PACE_EPOCHS = 4  # of the trainings that are timed
PACE_SETTINGS = {"epochs": PACE_EPOCHS, "patience": PACE_EPOCHS, "select": "last", "stop": "epochs"}
PACE_NOTE = (
    f"Seconds per epoch: processor time of one thread (with --device, wall time) in trainings of {PACE_EPOCHS} epochs "
    "without evaluation, but for methods that choose an epoch by validation nodes; the least over epochs and seeds."
)


def swept_cells(sweep: Sweep, datasets: Iterable[str], series: Iterable[str], seeds: int) -> list[Cell]:
    """What a sweep has to run."""
    places = (sweep(dataset, one) for dataset, one in itertools.product(datasets, series))
    return [cell for cells in places for group in cells.values() for cell in group.seeded(seeds)]


def curves_of(sweep: Sweep, datasets: Iterable[str], series: Iterable[str], rows: Rows) -> Curves:
    """The curves that have results, by dataset and series."""
    found = {key: curve(sweep(*key), rows) for key in itertools.product(datasets, series)}
    return {key: points for key, points in found.items() if points}


def reasons(sweep: Sweep, datasets: Iterable[str], series: Iterable[str], rows: Rows) -> list[str]:
    """Why points are missing: a sentence for every place whose cell failed or was stopped."""
    return [
        f"{one} on {dataset} at {place:g}: {row['reason']}."
        for dataset, one in itertools.product(datasets, series)
        for place, cell in sweep(dataset, one).items()
        for row in rows.find(cell)[:1]
        if row["status"] != DONE
    ]


def pace_cell(cell: Cell) -> Cell:
    """A short training with the settings of ``cell``, for the seconds an epoch takes."""
    short = {name: value for name, value in PACE_SETTINGS.items() if name in cell.settings}
    options = {"device": cell.options["device"]}
    return replace(cell, measure=measures.pace, settings={**cell.settings, **short}, options=options)


def pace_cells(cells: Iterable[Cell]) -> list[Cell]:
    """One of each: cells that differ in their epochs alone share it."""
    return list({(cell.hash, cell.seed): cell for cell in map(pace_cell, cells)}.values())


def with_pace(curves: Curves, sweep: Sweep, rows: Rows) -> Curves:
    """The same curves with the seconds of an epoch in every result, where they were measured."""

    def timed(cell: Cell, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pace = min((row["epoch_seconds"] for row in rows.results(pace_cell(cell))), default=None)
        return [{**result, "epoch_seconds": pace} for result in results]

    return {
        key: {place: timed(sweep(*key)[place], results) for place, results in points.items()}
        for key, points in curves.items()
    }


def by_dataset(curves: Curves) -> dict[str, dict[str, Curve]]:
    """The curves of every dataset, by series."""
    found: dict[str, dict[str, Curve]] = {}
    for (dataset, series), points in curves.items():
        found.setdefault(dataset, {})[series] = points
    return found


def curve(cells: Mapping[float, Cell], rows: Rows) -> Curve:
    """The results there are, at the place of each cell."""
    return {place: results for place, cell in cells.items() if (results := rows.results(cell))}


def curve_table(
    name: str,
    title: str,
    headings: tuple[str, str, str],
    curves: Curves,
    metrics: Sequence[Metric],
    notes: Sequence[str],
) -> Table:
    """A line for every point. ``headings`` are those of the two parts of a curve's key, and of the x axis."""
    lines, records = [], []
    for key, points in curves.items():
        for place, results in sorted(points.items()):
            means = {metric.heading: metric.values(results) for metric in metrics}
            spreads = {heading: spread(values) if values else None for heading, values in means.items()}
            texts = [
                "" if one is None else measured(one["mean"], one["std"] if len(means[heading]) > 1 else None)
                for heading, one in spreads.items()
            ]
            lines.append([*key, f"{place:g}", str(len(results)), *texts])
            record: dict[str, Any] = {**dict(zip(headings, (*key, place), strict=True)), "seeds": len(results)}
            for metric in metrics:
                one = spreads[metric.heading]
                record[metric.heading] = one and one["mean"]
                if not metric.common:
                    record[f"{metric.heading}, std"] = one and one["std"]
            records.append(record)
    columns = [*headings, "seeds", *(metric.heading for metric in metrics)]
    return Table(name, title, columns, lines, records, ["Mean ± standard deviation over the seeds.", *notes])


def panels(
    name: str,
    title: str,
    x: str,
    curves: Mapping[str, Curve],
    metrics: Sequence[Metric],
    *,
    columns: int = 2,
    even: bool = False,
) -> Figure:
    """A panel for every metric; with ``even`` the places on the x axis stand at equal distances."""
    places = sorted({place for points in curves.values() for place in points})
    at = {place: float(number) if even else place for number, place in enumerate(places)}
    count = -(-len(metrics) // columns)

    def paint(canvas: Any) -> None:
        grid = canvas.subplots(count, columns, squeeze=False, sharex=True).ravel()
        for axes, metric in zip(grid, metrics, strict=False):
            read = {
                label: {at[place]: values for place, results in points.items() if (values := metric.values(results))}
                for label, points in curves.items()
            }
            plot_curves(axes, {label: points for label, points in read.items() if points})
            axes.set_ylabel(metric.heading)
            axes.set_xticks(list(at.values()), [f"{place:g}" for place in at])
        for axes in grid[-columns:]:
            axes.set_xlabel(x)
        canvas.suptitle(title, fontsize=8)
        handles, labels = grid[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3)

    return Figure(name, paint, (3.4, 0.5 + 1.35 * count + 0.15 * -(-len(curves) // 3)))
