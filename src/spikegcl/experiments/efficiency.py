"""Tables 2 and 5 of the paper: every printed parameter count and energy beside our recomputation, with a verdict.

Parameters and the energy of networks without spikes follow from the shape of the graph alone. Spikes have to be
counted, so spiking methods are trained.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from spikegcl.baselines import Shape, find_method
from spikegcl.datasets import DATASETS
from spikegcl.energy import RULES, energy
from spikegcl.experiments import Cell, Choice, Experiment, choose_settings, paper
from spikegcl.experiments.accuracy import accuracy_cell, drawn_cell, is_here
from spikegcl.experiments.drawings import Table, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.experiments.rows import Rows

TITLE = "Parameters and energy (the paper's Tables 2 and 5)"
TABLES = ("table5", "table2")
AVERAGE = "average-"
# Settings that a printed number may come from: those of the accuracies, and those that give the printed parameters.
PRESETS = ("paper-parameters", "paper")


class Printed(NamedTuple):
    """A cell of a printed table; a table of two that print the same text counts once."""

    table: str
    row: str
    dataset: str
    text: str


def printed_cells(part: str) -> Iterator[Printed]:
    """Every number the two tables print for ``part`` (parameters or energy), row by row."""
    seen = set()
    for table in TABLES:
        for row, texts in paper.values()[table][part].items():
            for dataset, text in zip(paper.datasets(table), texts):
                if paper.number(text) is not None and (row, dataset, text) not in seen:
                    seen.add((row, dataset, text))
                    yield Printed(table, row, dataset, text)


def cells(choice: Choice) -> list[Cell]:
    wanted = dict.fromkeys((cell.row, cell.dataset) for cell in printed_cells("energy"))
    return [
        cell
        for method, dataset in wanted
        if not method.startswith(AVERAGE) and is_here(method) and find_method(method).spiking
        if method in (choice.methods or (method,)) and dataset in (choice.datasets or (dataset,))
        for cell in accuracy_cell(method, dataset, choice).seeded(choice.seeds)
    ]


def draw(choice: Choice, rows: Rows) -> list[Table]:
    parameters = [_parameters(cell) for cell in printed_cells("parameters")]
    joules = [_energy(cell, choice, rows) for cell in printed_cells("energy")]
    legend = (
        "Verdicts: 'equal' means that the printed digits are ours, cut off; 'rounding' that ours rounds to them; "
        f"'differs' that ours is within {100 * paper.NEAR:.0f} % (averages: any); 'no rule found' that it is not. "
        "An average is recomputed from the printed rows above it."
    )
    return [
        plain_table(
            "efficiency-parameters",
            "Parameters in thousands (the paper's Tables 2 and 5)",
            parameters,
            [legend, _count(parameters), "'settings' is the preset they were counted with."],
        ),
        plain_table(
            "efficiency-energy",
            "Energy in millijoules by three rules (the paper's Tables 2 and 5)",
            joules,
            [
                legend,
                _count(joules),
                "'nearest' is the rule and preset that comes closest. docs/energy.md has the rules.",
            ],
        ),
    ]


def _parameters(cell: Printed) -> dict[str, Any]:
    preset, ours = "", _mean_of_printed("parameters", cell)
    if is_here(cell.row):
        method = find_method(cell.row)
        preset, settings = choose_settings(method, cell.dataset, PRESETS[0])
        ours = method.parameters(_shape(cell.dataset), settings) / 1e3
    return {**_heading(cell), "ours": ours, "settings": preset, "verdict": _verdict(cell, ours)}


def _energy(cell: Printed, choice: Choice, rows: Rows) -> dict[str, Any]:
    by_preset = _energies(cell, choice, rows)
    candidates = {
        f"{rule}, {preset}": value for preset, by_rule in by_preset.items() for rule, value in by_rule.items()
    }
    if (average := _mean_of_printed("energy", cell)) is not None:
        candidates = {"mean of the printed rows": average}
    nearest = min(candidates, key=lambda name: abs(candidates[name] - float(cell.text)), default=None)
    best = None if nearest is None else candidates[nearest]
    shown: dict[str, float] = next(iter(by_preset.values()), {})
    return {
        **_heading(cell),
        **{rule: shown.get(rule, shown.get(RULES[-1])) for rule in RULES},
        "nearest": nearest,
        "nearest value": best,
        "verdict": _verdict(cell, best),
    }


def _energies(cell: Printed, choice: Choice, rows: Rows) -> dict[str, dict[str, float]]:
    """Millijoules by preset and rule. A network without spikes costs the same by all rules; the last stands for them.

    Empty for a method that is not here, or that spikes and was not trained yet.
    """
    if not is_here(cell.row):
        return {}
    method = find_method(cell.row)
    if method.spiking:
        trained = drawn_cell(cell.row, cell.dataset, choice, rows)
        joules = [result["energy"] for result in rows.results(trained)]
        means = {rule: 1e3 * sum(one[rule] for one in joules) / len(joules) for rule in (RULES if joules else ())}
        return {trained.preset: means} if means else {}
    by_preset = dict(choose_settings(method, cell.dataset, preset) for preset in PRESETS)
    counts = {name: method.operations(_shape(cell.dataset), settings, ()) for name, settings in by_preset.items()}
    return {name: {RULES[-1]: 1e3 * energy(count, RULES[-1])} for name, count in counts.items()}


def _mean_of_printed(part: str, cell: Printed) -> float | None:
    """Of a row of averages: the mean of the rows between it and the averages before it."""
    if not cell.row.startswith(AVERAGE):
        return None
    rows = list(paper.values()[cell.table][part])
    above = rows[: rows.index(cell.row)]
    first = max((index + 1 for index, row in enumerate(above) if row.startswith(AVERAGE)), default=0)
    numbers = [paper.number(paper.printed(cell.table, row, cell.dataset, part)) for row in above[first:]]
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known)


def _verdict(cell: Printed, ours: float | None) -> str:
    """The rule of an average is known, however far off the printed one is."""
    return paper.verdict(cell.text, ours, near=math.inf if cell.row.startswith(AVERAGE) else paper.NEAR)


def _heading(cell: Printed) -> dict[str, Any]:
    return {
        "method": cell.row,
        "dataset": cell.dataset,
        "table": cell.table.removeprefix("table"),
        "printed": cell.text,
    }


def _shape(dataset: str) -> Shape:
    info = DATASETS[dataset]
    return Shape(info.nodes, info.edges, info.features, info.classes)


def _count(records: list[dict[str, Any]]) -> str:
    """How many cells got which verdict."""
    kinds = Counter("differs" if record["verdict"].startswith("differs") else record["verdict"] for record in records)
    return f"{len(records)} printed cells: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) + "."


EXPERIMENTS = (Experiment("efficiency", TITLE, cells, draw),)
