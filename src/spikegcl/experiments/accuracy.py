"""Tables 1 and 4 of the paper: test accuracy of all methods; printed, ours and the floor, cell by cell."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from spikegcl.baselines import SIGN
from spikegcl.datasets import available
from spikegcl.experiments import PRESETS, Cell, Choice, Experiment, measures, method_cell, paper, with_chosen
from spikegcl.experiments.drawings import Table, over_seeds, percent
from spikegcl.experiments.rows import DONE
from spikegcl.protocol import summarise

if TYPE_CHECKING:
    from spikegcl.experiments.rows import Rows

COLUMNS = (
    *("accuracy", "std", "seeds", "untrained", "projection", SIGN, "bits", "dimensions", "parameters"),
    *("firing_rate", "train_seconds", "peak_mb", "select", "probe"),
)
# How near the printed value a cell should be, in points: runs of binary and spiking methods are less stable.
NEAR = {"float": 1.5, "binary or spiking": 2.0}
CELL_NOTE = (
    "A cell reads: printed / ours ± standard deviation (seeds) / floor. The floor is the method's own encoder before "
    "training or, for closed forms, a random projection of the same number of bits; the CSV has them all."
)
FLOOR_BITS = 256  # of the random projection that stands beside methods without a floor of their own


def accuracy_cell(method: str, dataset: str, choice: Choice) -> Cell:
    return method_cell(measures.accuracy, method, dataset, choice)


def drawn_cell(method: str, dataset: str, choice: Choice, rows: Rows) -> Cell:
    """The cell of the chosen preset or, if it has no rows, that of another which has; ``paper`` where both are one."""
    presets = (choice.preset, *PRESETS)
    cells = [accuracy_cell(method, dataset, replace(choice, preset=preset)) for preset in presets]
    drawn = next((cell for look in (rows.results, rows.find) for cell in cells if look(cell)), cells[0])
    return min((cell for cell in cells if cell.hash == drawn.hash), key=lambda cell: cell.preset != "paper")


def projection_floor(dataset: str, choice: Choice, rows: Rows) -> float | None:
    """Accuracy of a random projection to ``FLOOR_BITS`` bits under the probe, from the rows of compact."""
    found = rows.results(method_cell(measures.accuracy, "compact", dataset, choice, {"bits": FLOOR_BITS}))
    return float(summarise(found)["floors"]["projection"]["mean"]) if found else None


def cells(printed_in: str, choice: Choice) -> list[Cell]:
    return [
        cell
        for method in choice.methods or paper.methods()
        for dataset in choice.datasets or paper.datasets(printed_in)
        for cell in accuracy_cell(method, dataset, choice).seeded(choice.seeds)
    ]


def draw(name: str, printed_in: str, title: str, choice: Choice, rows: Rows) -> list[Table]:
    datasets = with_chosen(paper.datasets(printed_in), choice.datasets)
    lines: list[list[str]] = []
    records: list[dict[str, Any]] = []
    remarks: dict[str, dict[str, list[str]]] = {}
    projections = {dataset: projection_floor(dataset, choice, rows) for dataset in datasets}
    for method in with_chosen(list(paper.methods()), choice.methods):
        heading, marks = paper.methods().get(method, (method, ""))
        texts = []
        for dataset in datasets:
            cell = drawn_cell(method, dataset, choice, rows)
            entry = compare(paper.accuracy(method, dataset), cell, choice, rows, projections[dataset])
            records.append({"method": method, "marks": marks, "dataset": dataset, **entry.record})
            texts.append(entry.text)
            if entry.remark:
                remarks.setdefault(entry.remark, {}).setdefault(heading, []).append(dataset)
        lines.append([heading, *("x" if mark in marks else "" for mark in "USB"), *texts])
    notes = [
        CELL_NOTE,
        "Supervised methods have no such floor; beside them stands a random projection to "
        f"{FLOOR_BITS} bits where it has been run.",
        f"Probe of embeddings and codes: {choice.probe}; supervised methods predict by themselves. "
        "U unsupervised, S spiking, B binary.",
        *distances(records),
        *(f"{_places(datasets)}: {remark}." for remark, datasets in remarks.items()),
    ]
    return [Table(name, title, ["method", *"USB", *datasets], lines, records, notes)]


def _places(datasets: dict[str, list[str]]) -> str:
    """Cells named by method.

    >>> _places({"GAT": ["cora", "photo"], "DGI": ["cora"]})
    'GAT on cora, photo; DGI on cora'
    """
    return "; ".join(f"{method} on {', '.join(places)}" for method, places in datasets.items())


def distances(records: list[dict[str, Any]]) -> list[str]:
    """How many cells are near what is printed, by kind of method; nothing of a kind without any.

    >>> distances([{"marks": "U", "difference": -0.7}, {"marks": "", "difference": 1.6}])
    ['Of 2 cells of float methods with rows, 1 within 1.5 points of the printed value.']
    """
    points: dict[str, list[float]] = {kind: [] for kind in NEAR}
    for record in records:
        if record["difference"] is not None:
            points["binary or spiking" if set("SB") & set(record["marks"]) else "float"].append(record["difference"])
    return [
        f"Of {len(found)} cells of {kind} methods with rows, {sum(abs(point) <= NEAR[kind] for point in found)} "
        f"within {NEAR[kind]:g} points of the printed value."
        for kind, found in points.items()
        if found
    ]


class Entry(NamedTuple):
    """One cell of a table: for programs, for people, and what these must know about it."""

    record: dict[str, Any]
    text: str
    remark: str


def compare(printed: str | None, cell: Cell, choice: Choice, rows: Rows, projection: float | None = None) -> Entry:
    """What the paper prints beside what the rows of a cell of :func:`measures.accuracy` say.

    ``projection`` is the floor of methods without one.
    """
    found = rows.find(cell)
    results = [row["result"] for row in found if row["status"] == DONE]
    record: dict[str, Any] = {"paper": printed, "preset": cell.preset, **summary(results)}
    record["difference"] = difference(printed, record["accuracy"])
    if results and record["untrained"] is None and record["projection"] is None:
        record["projection"] = projection
    remarks = [row["reason"] for row in found if row["status"] != DONE][:1]
    if results:
        ours = over_seeds(record["accuracy"], record["std"], record["seeds"])
        floor = record["untrained"] if record["untrained"] is not None else record["projection"]
        text = f"{printed or '-'} / {ours} / {'-' if floor is None else percent(floor)}"
        remarks += [] if record["preset"] == "paper" else [f"settings are those of preset {record['preset']}"]
    else:
        text = f"{printed or '-'} / {_why_missing(cell, bool(remarks), choice)}"
    remark = "; ".join(remarks)
    return Entry({**record, "remark": remark}, text, remark)


def difference(printed: str | None, accuracy: float | None) -> float | None:
    """Ours minus what is printed, in points.

    >>> difference("86.1 ± 0.2", 0.868)
    0.7
    """
    if accuracy is None or printed is None or not printed[0].isdigit():
        return None
    return round(100 * accuracy - float(printed.split()[0]), 2)


def _why_missing(cell: Cell, tried: bool, choice: Choice) -> str:
    return "see note" if tried else why_not_run(cell.dataset, choice)


def why_not_run(dataset: str, choice: Choice) -> str:
    return "not run" if available(dataset, choice.data_root) else "features not available here"


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell over its seeds, under the headings of ``COLUMNS``; None for what there is not."""
    if not results:
        return dict.fromkeys(COLUMNS) | {"seeds": 0}
    means = summarise(results)
    floors = {SIGN if name.endswith(SIGN) else name: floor["mean"] for name, floor in means["floors"].items()}
    known = means | floors | {
        "accuracy": means["test_accuracy"]["mean"],
        "std": means["test_accuracy"]["std"],
        "seeds": len(results),
        "train_seconds": means["seconds"]["train"],
    }  # fmt: skip
    return {name: known.get(name) for name in COLUMNS}


def _experiment(name: str, printed_in: str, title: str) -> Experiment:
    return Experiment(
        name, title, functools.partial(cells, printed_in), functools.partial(draw, name, printed_in, title)
    )


EXPERIMENTS = (
    _experiment("table1", "table1", "Test accuracy (%) on six larger graphs (the paper's Table 1)"),
    _experiment("citation", "table4", "Test accuracy (%) on three citation graphs (the paper's Table 4)"),
)
