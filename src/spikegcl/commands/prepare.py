"""spikegcl prepare."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import Json, Labels, SplitFile, console, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def prepare(
    edges: Annotated[list[Path], typer.Argument(help="Edge lists: CSV, TSV or Parquet with source, target, weight.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    features: Annotated[
        list[Path] | None, typer.Option(help="Features: CSV/Parquet keyed by id, may be repeated; or one .npy by row.")
    ] = None,
    labels: Labels = None,
    split: SplitFile = None,
    memory: Annotated[str, typer.Option(help="What the process may use, at least 512MB.")] = "4GB",
    on_bad: Annotated[str, typer.Option(help="Rows that cannot be used: refuse (list them) or skip.")] = "refuse",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing prepared graph.")] = False,
    json_: Json = False,
) -> None:
    """Turn edge and feature files, also larger than memory, into a folder that every command opens at once."""
    from spikegcl.memory import peak_mb
    from spikegcl.preparation import prepare_graph

    with _stage_bars() as on_progress:
        manifest = prepare_graph(
            edges, output, features=features or [], labels=labels, split=split, memory=memory, on_bad=on_bad,
            force=force, on_progress=on_progress,
        )  # fmt: skip
    if json_:
        print(json.dumps({"graph": str(output), "peak_mb": peak_mb(), **manifest}))
        return
    rows = table("", "")
    rows.add_row("nodes", f"{manifest['nodes']:,}")
    rows.add_row("undirected edges", f"{manifest['edges']:,}")
    rows.add_row("features", f"{manifest['features']:,}")
    for kind, count in manifest["skipped"].items():
        rows.add_row(f"skipped, {kind}", f"{count:,}")
    rows.add_row("size", f"{sum(file['bytes'] for file in manifest['files'].values()) / 1e6:,.1f} MB")
    rows.add_row("peak memory", f"{peak_mb():,.0f} MB")
    rows.add_row("folder", str(output))
    console().print(rows)


@contextlib.contextmanager
def _stage_bars() -> Iterator[Callable[[str, float | None], None]]:
    """A progress bar with time left for each stage on a terminal, nothing in a pipe."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda stage, share: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=screen, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def advance(stage: str, share: float | None) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.update(task, total=1, completed=1)
                tasks[stage] = progress.add_task(stage, total=None if share is None else 1)
            elif share is not None:
                progress.update(tasks[stage], completed=share)

        yield advance
