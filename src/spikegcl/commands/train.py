"""spikegcl train and spikegcl demo."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import (
    DataRoot,
    Device,
    Features,
    Json,
    Labels,
    Output,
    SplitFile,
    console,
    load,
    percent,
    table,
    with_settings,
)
from spikegcl.errors import LabelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spikegcl.graph import Graph
    from spikegcl.training import Epoch

log = logging.getLogger("spikegcl")

Probe = Annotated[str, typer.Option(help="Linear probe: logreg or paper.")]


def train(
    graph: Annotated[str, typer.Argument(help="A dataset's name (see `spikegcl datasets`) or an edge list file.")],
    features: Features = None,
    labels: Labels = None,
    split: SplitFile = None,
    output: Output = Path("runs/latest"),
    preset: Annotated[str, typer.Option(help="default (any graph) or paper (the paper's datasets).")] = "default",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; its model and codes are kept.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to train.")] = 1,
    probe: Probe = "logreg",
    data_root: DataRoot = None,
    device: Device = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run folder.")] = False,
    report: Annotated[bool, typer.Option(help="Draw report.html into the run folder.")] = True,
    json_: Json = False,
) -> None:
    """Turn a graph into 1-bit codes, judge them beside their floors, write a run folder."""
    from spikegcl import protocol
    from spikegcl.config import preset as find_preset
    from spikegcl.probes import PROBES
    from spikegcl.runs import new_run, write_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    loaded, source = load(graph, features, labels, split, data_root)
    config = with_settings(find_preset(preset, loaded.name), settings or [])
    if loaded.labels is None and "validation" in (config.select, config.stop):
        raise LabelError("this preset selects the epoch by validation accuracy: give --labels, or --set select=last")
    with new_run(output, force=force) as folder:
        judged: list[protocol.Judged] = []
        for number in range(seed, seed + seeds):
            with _epoch_bar(f"seed {number}", config.epochs) as on_epoch:
                one = protocol.run_seed(loaded, config, number, probe=probe, on_epoch=on_epoch, device=device)
            judged.append(one if number == seed else protocol.Judged(judged[0].trained, one.row))
        rows = [one.row for one in judged]
        metrics = {**protocol.summarise(rows), "preset": preset, "run": str(output), "rows": rows}
        write_run(folder, loaded, judged[0].trained, source, seed=seed, preset=preset, metrics=metrics)
        if report:
            _draw_report(folder, loaded, output)
    if json_:
        print(json.dumps(metrics))
    else:
        _print_summary(metrics, loaded)


def demo(output: Output = Path("runs/demo"), seed: int = 0, json_: Json = False) -> None:
    """Train on the embedded graph in seconds, print what the codes are worth, write a run folder."""
    train("digits", output=output, seed=seed, force=True, json_=json_)


def _draw_report(folder: Path, graph: Graph, output: Path) -> None:
    from spikegcl.report import write_report
    from spikegcl.runs import open_run

    try:
        write_report(open_run(folder), graph)
    except Exception as error:  # a picture that fails must not cost the run it shows
        log.warning("report.html was not drawn (%r); the run is complete, try `spikegcl report %s`", error, output)


@contextlib.contextmanager
def _epoch_bar(title: str, epochs: int) -> Iterator[Callable[[Epoch], None] | None]:
    """A progress bar with time left on a terminal, nothing in a pipe."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(title, total=epochs)

        def advance(epoch: Epoch) -> None:
            progress.update(task, advance=1, description=f"{title}, loss {epoch.loss:.4f}")

        yield advance


def _print_summary(metrics: dict[str, Any], graph: Graph) -> None:
    rows = table("", "")
    size = (metrics["bits"] + 7) // 8 * graph.num_nodes
    rows.add_row("graph", repr(graph))
    if "test_accuracy" in metrics:
        count = len(metrics["seeds"])
        rows.add_row(
            "test accuracy",
            f"{percent(metrics['test_accuracy'])} ({metrics['probe']} probe, {count} seed{'s' * (count > 1)})",
        )
        rows.add_row("  floor: untrained encoder", percent(metrics["floors"]["untrained"]))
        rows.add_row("  floor: random projection", percent(metrics["floors"]["projection"]))
    else:
        rows.add_row("test accuracy", "no labels given")
    rows.add_row("bits per node", str(metrics["bits"]))
    rows.add_row("size", f"{size / 1e6:.2f} MB packed, {size * 32 / 1e6:.2f} MB as float32 of the same width")
    firing = f"{100 * metrics['firing_rate']:.1f} %"
    rows.add_row(
        "firing rate", f"{firing} ({metrics['dead_bits']:.0f} bits never fire, {metrics['constant_bits']:.0f} always)"
    )
    rows.add_row("seconds", ", ".join(f"{name} {value:.2f}" for name, value in metrics["seconds"].items()))
    rows.add_row("peak memory", f"{metrics['peak_mb']:.0f} MB")
    rows.add_row("run folder", metrics["run"])
    console().print(rows)
