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
from spikegcl.energy import PAPER, RULES, energy
from spikegcl.experiments import Cell, Choice, Experiment, choose_settings, formulas, paper, with_chosen
from spikegcl.experiments.accuracy import accuracy_cell, drawn_cell, why_not_run
from spikegcl.experiments.drawings import Table, plain_table, show
from spikegcl.experiments.frontier import GRAPHS
from spikegcl.protocol import spread

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
        if not method.startswith(AVERAGE) and find_method(method).spiking
        if method in (choice.methods or (method,)) and dataset in (choice.datasets or (dataset,))
        for cell in accuracy_cell(method, dataset, choice).seeded(choice.seeds)
    ]


def draw(choice: Choice, rows: Rows) -> list[Table]:
    parameters = [_parameters(cell) for cell in printed_cells("parameters")]
    joules = [_energy(cell, choice, rows) for cell in printed_cells("energy")]
    legend = (
        "Verdicts: 'equal' means that the printed digits are ours, cut off; 'rounding' that ours rounds to them; "
        f"'differs' that ours is within {100 * paper.NEAR:.0f} % or its own deviation over seeds (averages: any); "
        "'no rule found' that it is not. An average is recomputed from the printed rows above it."
    )
    tried = (
        "'by' is what comes closest: a preset of the method{}, or a formula that no settings of it give "
        "(N nodes, E directed edges, d features)."
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
            [
                legend,
                _count(joules),
                tried.format(" with a rule of docs/energy.md"),
                "Spikes are counted: such rows are means over seeds, and 'std' is the deviation of 'ours' over them.",
                f"The columns of the rules: spiking methods as trained, others with the sizes of {PRESETS[0]}.",
            ],
        ),
        plain_table(
            "efficiency-spikes",
            "SpikeGCL's printed energies: what they leave room for, in millijoules",
            [_room(cell, choice, rows) for cell in printed_cells("energy") if cell.row == "spikegcl"],
            [
                "'encoding' is the term T N d of the paper's formula, 'all spikes' the energy of codes without zeros.",
                "'rate needed' is the firing rate at which spikes alone give what is printed, 'rate' the measured one.",
                "Published settings. All but the measured rate follow from the size of the graph.",
            ],
        ),
        _of_all_methods(choice, rows),
    ]


class Ours(NamedTuple):
    """A recomputed number: what it was made by, and its deviation over seeds where spikes had to be counted."""

    by: str
    value: float
    std: float | None = None


def _parameters(cell: Printed) -> dict[str, Any]:
    if cell.row.startswith(AVERAGE):
        found = [_mean_of_printed("parameters", cell)]
    else:
        method, shape = find_method(cell.row), _shape(cell.dataset)
        by_preset = dict(choose_settings(method, cell.dataset, preset) for preset in PRESETS)
        counts = {name: method.parameters(shape, settings) / 1e3 for name, settings in by_preset.items()}
        found = [Ours(*one) for one in (counts | formulas.parameters(cell.row, shape)).items()]
    best, verdict = _closest(cell, found)
    return {**_heading(cell), "ours": best.value, "by": best.by, "verdict": verdict}


def _energy(cell: Printed, choice: Choice, rows: Rows) -> dict[str, Any]:
    by_rule: dict[str, float] = {}
    if cell.row.startswith(AVERAGE):
        found = [_mean_of_printed("energy", cell)]
    elif find_method(cell.row).spiking:
        found = _with_spikes(cell, choice, rows)
        by_rule = {rule: one.value for rule, one in zip(RULES, found)}
    else:
        found = _without_spikes(cell)
        by_rule = dict.fromkeys(RULES, found[0].value)
    shown = {**_heading(cell), **{rule: by_rule.get(rule) for rule in RULES}}
    if not found:
        return {**shown, "ours": None, "std": None, "by": None, "verdict": why_not_run(cell.dataset, choice)}
    best, verdict = _closest(cell, found)
    return {**shown, "ours": best.value, "std": best.std, "by": best.by, "verdict": verdict}


def _with_spikes(cell: Printed, choice: Choice, rows: Rows) -> list[Ours]:
    """Millijoules by each rule, over the trained rows there are."""
    trained = drawn_cell(cell.row, cell.dataset, choice, rows)
    joules = [result["energy"] for result in rows.results(trained)]
    spreads = {rule: spread(1e3 * one[rule] for one in joules) for rule in (RULES if joules else ())}
    return [Ours(f"{rule}, {trained.preset}", one["mean"], one["std"]) for rule, one in spreads.items()]


def _without_spikes(cell: Printed) -> list[Ours]:
    """Millijoules, the same by all rules: with each preset, then by formulas."""
    method, shape, rule = find_method(cell.row), _shape(cell.dataset), RULES[-1]
    by_preset = dict(choose_settings(method, cell.dataset, preset) for preset in PRESETS)
    counts = {name: method.operations(shape, settings, ()) for name, settings in by_preset.items()}
    found = {f"{rule}, {name}": 1e3 * energy(count, rule) for name, count in counts.items()}
    return [Ours(*one) for one in (found | formulas.millijoules(cell.row, shape)).items()]


def _mean_of_printed(part: str, cell: Printed) -> Ours:
    """Of a row of averages: the mean of the rows between it and the averages before it."""
    rows = list(paper.values()[cell.table][part])
    above = rows[: rows.index(cell.row)]
    first = max((index + 1 for index, row in enumerate(above) if row.startswith(AVERAGE)), default=0)
    numbers = [paper.number(paper.printed(cell.table, row, cell.dataset, part)) for row in above[first:]]
    known = [number for number in numbers if number is not None]
    return Ours("mean of the printed rows", sum(known) / len(known))


def _closest(cell: Printed, found: list[Ours]) -> tuple[Ours, str]:
    """The number with the printed digits or, if none has them, the closest one; and its verdict."""
    printed = float(cell.text)

    def verdict(one: Ours) -> str:
        # The rule of an average is known, however far off the printed one is.
        near = math.inf if cell.row.startswith(AVERAGE) else max(paper.NEAR, (one.std or 0.0) / printed)
        return paper.verdict(cell.text, one.value, near)

    def distance(one: Ours) -> tuple[int, float]:
        return ("equal", "rounding", verdict(one)).index(verdict(one)), abs(one.value - printed)

    best = min(found, key=distance)
    return best, verdict(best)


def _of_all_methods(choice: Choice, rows: Rows) -> Table:
    """Parameters and energy of every method on every graph with its features here, as it was trained."""
    graphs = with_chosen(GRAPHS, choice.datasets)
    records, lines = [], []
    for method, (title, _) in paper.methods().items():
        texts = []
        for dataset in graphs:
            cell = drawn_cell(method, dataset, choice, rows)
            results = rows.results(cell)
            joules = {rule: spread(1e3 * one["energy"][rule] for one in results)["mean"] for rule in RULES if results}
            if results:
                facts = {"method": method, "dataset": dataset, "preset": cell.preset, "seeds": len(results)}
                records.append({**facts, "parameters": results[0]["parameters"], **joules})
            shown = [show(value, 3) for value in joules.values()]
            texts.append(" / ".join(shown[:1] if len(set(shown)) == 1 else shown))
        lines.append([title, *texts])
    return Table(
        "efficiency-methods",
        "Energy in millijoules of all methods, as trained for the tables of accuracy",
        ["method", *graphs],
        lines if records else [],
        records,
        [
            f"{' / '.join(RULES)}; one number where all rules give the same. The CSV has the parameters beside them.",
            "One pass over the graph, mean over the seeds. Sizes are those of the accuracies, not of printed energies.",
        ],
    )


def _room(cell: Printed, choice: Choice, rows: Rows) -> dict[str, Any]:
    """The two terms of the paper's formula, the second at its largest, and the firing rate that gives the cell."""
    config = find_method(cell.row).settings_for("paper", cell.dataset)
    shape, bits = _shape(cell.dataset), config.steps * config.channels
    most = 1e3 * PAPER.sop * shape.nodes * bits
    rates = [100 * row["firing_rate"] for row in rows.results(drawn_cell(cell.row, cell.dataset, choice, rows))]
    measured = spread(rates) if rates else {}
    return {
        **_heading(cell),
        "encoding": 1e3 * PAPER.mac * config.steps * shape.nodes * shape.features,
        "all spikes": most,
        "rate needed (%)": 100 * float(cell.text) / most,
        "rate (%)": measured.get("mean"),
        "std (%)": measured.get("std"),
    }


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
