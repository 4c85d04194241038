"""Tables 2 and 5 of the paper: every printed parameter count and energy beside our recomputation, with a verdict.

Parameters and the energy of networks without spikes follow from the shape of the graph alone. Spikes have to be
counted, so spiking methods are trained.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from spikegcl.baselines import Shape, find_method
from spikegcl.datasets import DATASETS, available
from spikegcl.energy import PAPER, RULES, energy
from spikegcl.experiments import Cell, Choice, Experiment, choose_settings, formulas, paper
from spikegcl.experiments.accuracy import accuracy_cell, drawn_cell, is_here
from spikegcl.experiments.drawings import Table, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.experiments.rows import Rows

TITLE = "Parameters and energy (the paper's Tables 2 and 5)"
TABLES = ("table5", "table2")
AVERAGE = "average-"
AVERAGED = "mean of the printed rows"
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
    tried = (
        "'by' is what comes closest: a preset of the method{}, or a formula that no settings of it give "
        "(N nodes, E directed edges, d features), tried because it explains other cells of the row."
    )
    return [
        plain_table(
            "efficiency-parameters",
            "Parameters in thousands (the paper's Tables 2 and 5)",
            parameters,
            [legend, _count(parameters), tried.format("")],
        ),
        plain_table(
            "efficiency-energy",
            "Energy in millijoules by three rules (the paper's Tables 2 and 5)",
            joules,
            [legend, _count(joules), tried.format(" with a rule of docs/energy.md")],
        ),
        plain_table(
            "efficiency-spikes",
            "SpikeGCL's printed energies: what they leave room for, in millijoules",
            [_room(cell, choice, rows) for cell in printed_cells("energy") if cell.row == "spikegcl"],
            [
                "'encoding' is the term T N d of the paper's formula, 'all spikes' the energy of codes without zeros.",
                "'rate needed' is the firing rate at which spikes alone give what is printed, 'rate' the measured one.",
                "Published settings. All but the last column follow from the size of the graph.",
            ],
        ),
    ]


def _parameters(cell: Printed) -> dict[str, Any]:
    candidates: dict[str, float] = {}
    if (average := _mean_of_printed("parameters", cell)) is not None:
        candidates = {AVERAGED: average}
    elif is_here(cell.row):
        method, shape = find_method(cell.row), _shape(cell.dataset)
        by_preset = dict(choose_settings(method, cell.dataset, preset) for preset in PRESETS)
        candidates = {name: method.parameters(shape, settings) / 1e3 for name, settings in by_preset.items()}
        candidates |= formulas.parameters(cell.row, shape)
    return {**_heading(cell), **_nearest(cell, candidates)}


def _energy(cell: Printed, choice: Choice, rows: Rows) -> dict[str, Any]:
    by_preset = _energies(cell, choice, rows)
    candidates = {
        f"{rule}, {preset}": value for preset, by_rule in by_preset.items() for rule, value in by_rule.items()
    }
    if (average := _mean_of_printed("energy", cell)) is not None:
        candidates = {AVERAGED: average}
    else:
        candidates |= formulas.millijoules(cell.row, _shape(cell.dataset))
    shown: dict[str, float] = next(iter(by_preset.values()), {})
    by_rule = {rule: shown.get(rule, shown.get(RULES[-1])) for rule in RULES}
    return {**_heading(cell), **by_rule, **_nearest(cell, candidates, choice)}


def _nearest(cell: Printed, candidates: dict[str, float], choice: Choice | None = None) -> dict[str, Any]:
    """The candidate with the printed digits or, if none has them, the closest one."""
    if not candidates and choice is not None and not available(cell.dataset, choice.data_root):
        return {"ours": None, "by": None, "verdict": "features not available here"}
    # The rule of an average is known, however far off the printed one is.
    near = math.inf if AVERAGED in candidates else paper.NEAR
    verdicts = {name: paper.verdict(cell.text, value, near) for name, value in candidates.items()}

    def distance(name: str) -> tuple[int, float]:
        better = {"equal": 0, "rounding": 1}
        return better.get(verdicts[name], len(better)), abs(candidates[name] - float(cell.text))

    name = min(candidates, key=distance, default=None)
    if name is None:
        return {"ours": None, "by": None, "verdict": "not computed"}
    return {"ours": candidates[name], "by": name, "verdict": verdicts[name]}


def _room(cell: Printed, choice: Choice, rows: Rows) -> dict[str, Any]:
    """The two terms of the paper's formula, the second at its largest, and the firing rate that gives the cell."""
    config = find_method(cell.row).settings_for("paper", cell.dataset)
    shape, bits = _shape(cell.dataset), config.steps * config.channels
    most = 1e3 * PAPER.sop * shape.nodes * bits
    rates = [row["firing_rate"] for row in rows.results(drawn_cell(cell.row, cell.dataset, choice, rows))]
    return {
        **_heading(cell),
        "encoding": 1e3 * PAPER.mac * config.steps * shape.nodes * shape.features,
        "all spikes": most,
        "rate needed (%)": 100 * float(cell.text) / most,
        "rate (%)": 100 * sum(rates) / len(rates) if rates else None,
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
