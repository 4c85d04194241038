"""Table 3 of the paper: the graphs, with the printed density row and the one that their sizes give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikegcl.datasets import DATASETS
from spikegcl.experiments import Cell, Choice, Experiment, measures, paper, with_chosen
from spikegcl.experiments.drawings import Table, plain_table

if TYPE_CHECKING:
    from spikegcl.experiments.rows import Rows

COUNTS = ("nodes", "edges", "features", "classes")
TITLE = "The graphs (the paper's Table 3)"


def cells(choice: Choice) -> list[Cell]:
    """None where methods were chosen: graphs are counted without any."""
    names = () if choice.methods else choice.datasets or paper.datasets("table3")
    return [Cell(measures.statistics, name) for name in names]


def draw(choice: Choice, rows: Rows) -> list[Table]:
    names = with_chosen(paper.datasets("table3"), choice.datasets)
    found = {name: _statistics(name, rows) for name in names}
    records = [
        {
            "dataset": name,
            **{count: found[name][count] for count in COUNTS},
            "same as printed": _compare(name, found[name]),
            "density, %": _density(found[name]),
            "printed": paper.printed("table3", "density", name),
            "printed for": ", ".join(_with_density(paper.printed("table3", "density", name), found)),
            "source": found[name]["source"],
        }
        for name in names
    ]
    notes = [
        "Edges are directed (twice the undirected ones), without self-loops. Density is edges / nodes².",
        "'printed' is the density the paper gives for the graph; 'printed for' the graph whose density that is.",
        "Source: 'file' was counted in the graph as loaded; 'catalogue' is the known size of what was not counted.",
    ]
    return [plain_table("datasets", TITLE, records, notes)]


def _statistics(name: str, rows: Rows) -> dict[str, Any]:
    if results := rows.results(Cell(measures.statistics, name)):
        return {**results[0], "source": "file"}
    if name not in DATASETS:  # a generated graph with a size of its own
        return {**dict.fromkeys(COUNTS), "density": None, "source": "not counted"}
    info = DATASETS[name]
    counts = {count: getattr(info, count) for count in COUNTS}
    return {**counts, "density": info.edges / info.nodes**2, "source": "catalogue"}


def _compare(name: str, found: dict[str, Any]) -> str:
    """Which of the four printed counts are not ours."""
    if paper.printed("table3", "nodes", name) is None:
        return "not printed"
    differing = [count for count in COUNTS if paper.number(paper.printed("table3", count, name)) != found[count]]
    return f"all but {', '.join(differing)}" if differing else "yes"


def _density(counts: dict[str, Any]) -> str:
    return "" if counts["density"] is None else f"{100 * counts['density']:.3f}"


def _with_density(printed: str | None, found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, counts in found.items() if _density(counts) == printed]


EXPERIMENTS = (Experiment("datasets", TITLE, cells, draw),)
