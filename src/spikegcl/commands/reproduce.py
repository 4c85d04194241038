"""spikegcl reproduce."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import DataRoot, Device, Json, console, table
from spikegcl.errors import DataMissingError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.experiments import Cell, Choice, Experiment
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.experiments.runner import Monitor

log = logging.getLogger("spikegcl")

Names = Annotated[str, typer.Option(metavar="A,B,...", help="Only these; the default is all of the experiment's.")]


def reproduce(
    name: Annotated[
        str, typer.Argument(help="An experiment of docs/reproduce.md, such as table1 or frontier, or all of them.")
    ],
    datasets: Names = "",
    methods: Names = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N - 1.")] = 3,
    preset: Annotated[
        str, typer.Option(help="cpu (published settings, shorter where a method would take days), paper, or default.")
    ] = "cpu",
    probe: Annotated[str, typer.Option(help="Linear probe: logreg or paper.")] = "logreg",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; they share the cores. Default 1, quick: one a core.")
    ] = None,
    budget: Annotated[float | None, typer.Option(min=0, help="Minutes after which no more is run.")] = None,
    cell_minutes: Annotated[float | None, typer.Option(min=0, help="Minutes a cell may take.")] = None,
    cell_gb: Annotated[
        float | None,
        typer.Option(min=0, help="Memory a cell may take; default 90 %, by turns if need be."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs each, into OUTPUT/quick: a dry run.")] = False,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Run nothing, draw the rows there are.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--redo", help="Keep finished rows, or run the chosen anew.")] = True,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed or was stopped.")] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch data that is not at hand.")] = False,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of rows.jsonl, tables and figures.")] = Path(
        "results"
    ),
    page: Annotated[Path | None, typer.Option(help="Also write what was drawn on one Markdown page.")] = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Make a table or figure of the paper, or one of ours, from rows; finished rows are never run again."""
    from spikegcl.baselines import find_method
    from spikegcl.datasets import available
    from spikegcl.experiments import PRESETS, Choice, experiment_names, find_experiment
    from spikegcl.experiments.drawings import write_drawings, write_page
    from spikegcl.experiments.rows import FAILED, Rows
    from spikegcl.experiments.runner import NEVER, Budget, missing, run_cells
    from spikegcl.probes import PROBES

    for option, value, known in (("--preset", preset, PRESETS), ("--probe", probe, PROBES)):
        if value not in known:
            raise typer.BadParameter(f"{value!r} is unknown; choose one of {', '.join(known)}", param_hint=option)
    experiments = [find_experiment(one) for one in (experiment_names() if name == "all" else (name,))]
    choice = Choice(_split(datasets), _split(methods), seeds, preset, probe, device, quick, data_root)
    for method in choice.methods:
        find_method(method)  # raises if there is no such method
    for dataset in choice.datasets:
        available(dataset, data_root)  # raises if there is no such graph
    folder = output / "quick" if quick else output
    cells = [] if draw_only else _cells(experiments, choice, download)
    for target in (folder / "rows.jsonl", *([page] if page else [])):
        _check_writable(target)
    rows = Rows(folder / "rows.jsonl")
    if retry or not resume:
        rows.forget(cells, done=not resume)
    jobs = jobs or ((os.cpu_count() or 1) if quick else 1)
    limits = Budget(
        jobs,
        NEVER if budget is None else budget,
        NEVER if cell_minutes is None else cell_minutes,
        _usable_gb() if cell_gb is None else cell_gb,
        share=cell_gb is None,
    )
    with _monitor(len(missing(cells, rows))) as monitor:
        run_cells(cells, rows, limits, data_root=data_root, monitor=monitor)
    kept = Rows(rows.path)  # with the rows that --redo or --retry did not replace
    drawings = [drawing for experiment in experiments for drawing in _drawings(experiment, choice, kept)]
    files = write_drawings(drawings, folder)
    if page is not None:
        write_page(page, drawings, folder)
        files.append(page)
    counts = Counter(rows.status(cell) or "left" for cell in cells)
    if json_:
        print(json.dumps({"cells": counts, "rows": str(rows.path), "files": [str(path) for path in files]}))
    else:
        _print_summary(counts, files)
    if counts[FAILED]:
        raise typer.Exit(1)


def _cells(experiments: list[Experiment], choice: Choice, download: bool) -> list[Cell]:
    """Those that can be run, each once: experiments share cells, and the data of some may not be at hand."""
    from spikegcl.datasets import available

    wanted = [cell for experiment in experiments for cell in experiment.cells(choice)]
    cells = {(cell.hash, cell.seed): cell for cell in wanted}.values()
    at_hand = {name: download or available(name, choice.data_root) for name in {cell.dataset for cell in cells}}
    if absent := sorted(name for name, here in at_hand.items() if not here):
        names = ", ".join(absent)
        if not any(at_hand.values()):
            raise DataMissingError(
                f"not at hand: {names}; give --data-root or --download, or --draw-only to draw the rows there are"
            )
        log.info("not at hand: %s (--download fetches what can be fetched)", names)
    return [cell for cell in cells if at_hand[cell.dataset]]


def _drawings(experiment: Experiment, choice: Choice, rows: Rows) -> Iterator[Table | Figure]:
    """What the experiment draws; the tables of a dry run say that they are one."""
    from spikegcl.experiments import QUICK_EPOCHS
    from spikegcl.experiments.drawings import Table

    warning = f"A dry run: at most {QUICK_EPOCHS} epochs and small grids. The numbers mean nothing."
    for drawing in experiment.draw(choice, rows):
        if choice.quick and isinstance(drawing, Table):
            drawing = dataclasses.replace(drawing, notes=[warning, *drawing.notes])
        yield drawing


def _check_writable(path: Path) -> None:
    """Before the first cell is run: what it took would be lost with its row."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}; choose another --output or --page") from None


def _split(names: str) -> tuple[str, ...]:
    """Names between commas, but for the commas of a generated graph: sbm:nodes=200,classes=3 is one name.

    >>> _split("Cora, sbm:nodes=200,classes=3,photo")
    ('cora', 'sbm:nodes=200,classes=3', 'photo')
    """
    found: list[str] = []
    for name in (part.strip().lower() for part in names.split(",") if part.strip()):
        if found and "=" in name and ":" not in name:
            found[-1] += f",{name}"
        else:
            found.append(name)
    return tuple(found)


def _usable_gb() -> float:
    import psutil

    return float(0.9 * psutil.virtual_memory().total / 2**30)


@contextlib.contextmanager
def _monitor(total: int) -> Iterator[Monitor]:
    """On a terminal a bar with the time left; in a pipe a line for every cell that ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from spikegcl.experiments.runner import Monitor

    class Lines(Monitor):
        def ended(self, cell: Cell, row: dict[str, Any] | None) -> None:
            if row is not None:
                log.info("%s: %s", cell, _outcome(row))

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield Lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Cells take minutes: the time left is an average over all of them, not over the last half minute.
    with Progress(*columns, console=screen, transient=True, speed_estimate_period=1e9) as progress:
        task = progress.add_task("", total=total)

        class Bar(Monitor):
            def started(self, cell: Cell) -> None:
                progress.update(task, description=str(cell))

            def ended(self, cell: Cell, row: dict[str, Any] | None) -> None:
                progress.advance(task)
                if row is not None:
                    progress.console.print(f"{cell}: {_outcome(row)}", highlight=False)

        yield Bar()


def _outcome(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"{row['status']}, {row['reason']}"
    accuracy = row["result"].get("test_accuracy")
    return f"{row['minutes']:.1f} min" + ("" if accuracy is None else f", {100 * accuracy:.2f} %")


def _print_summary(counts: Counter[str], files: list[Path]) -> None:
    listing = table("", "")
    listing.add_row("cells", ", ".join(f"{count} {status}" for status, count in counts.items()) or "none run")
    for path in files:
        listing.add_row("", str(path))
    console().print(listing)
