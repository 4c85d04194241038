"""spikegcl train and spikegcl demo."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import (
    GRAPH_HELP,
    PRESET_HELP,
    DataRoot,
    Device,
    Features,
    Json,
    Labels,
    Output,
    Parts,
    SplitFile,
    console,
    load,
    percent,
    table,
    with_settings,
)
from spikegcl.errors import LabelError, RunError, SpikeGCLError, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spikegcl.baselines import Method
    from spikegcl.graph import Graph
    from spikegcl.settings import Settings
    from spikegcl.training import Epoch

log = logging.getLogger("spikegcl")

MOST_SEED = 2**63 - 1  # what the generators take
BEHIND = 1.0  # points below a floor, and ...
DEAD = 0.25  # ... share of bits that never fire, from which on a user is told

Probe = Annotated[str, typer.Option(help="Linear probe: logreg or paper.")]


def train(
    graph: Annotated[str, typer.Argument(help=GRAPH_HELP)],
    features: Features = None,
    labels: Labels = None,
    split: SplitFile = None,
    output: Output = Path("runs/latest"),
    method: Annotated[
        str, typer.Option(help="spikegcl, another of `spikegcl methods`, or a float one with +sign.")
    ] = "spikegcl",
    preset: Annotated[str, typer.Option(help=PRESET_HELP)] = "default",
    bits: Annotated[
        int | None,
        typer.Option(min=1, help="Bits per node, if the method takes a number (compact: 256)."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="First seed; its model and codes are kept.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to train.")] = 1,
    probe: Probe = "logreg",
    parts: Parts = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run if it was interrupted.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints, which are made after epochs; 0: after each.")
    ] = 10,
    report: Annotated[bool, typer.Option(help="Draw report.html into the run folder (SpikeGCL only).")] = True,
    json_: Json = False,
) -> None:
    """Turn a graph into 1-bit codes, judge them beside their floors, write a run folder; --method runs any other."""
    from spikegcl import protocol, world
    from spikegcl.baselines import find_method
    from spikegcl.baselines.spikegcl import with_checkpoints
    from spikegcl.probes import PROBES
    from spikegcl.resume import Unfinished, identify
    from spikegcl.runs import finished, new_run, write_method_run, write_metrics, write_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    chosen = find_method(method)
    loaded, source = load(graph, features, labels, split, data_root)
    for file in source.files:
        if file.resolve().is_relative_to(output.resolve()):
            raise WriteError(f"{file} lies in {output}, which the run would replace; choose another --output")
    given = [*(settings or []), *([] if bits is None else [f"bits={bits}"])]
    if parts is not None or world.size() > 1:
        given.append(f"parts={parts or world.size()}")
    config = with_settings(chosen.settings_for(preset, loaded.name), given)
    _name_idle(config, given)
    preset = "compact" if (chosen.name, preset) == ("spikegcl", "default") else preset  # its name, for the record
    if loaded.labels is None and "validation" in (getattr(config, "select", ""), getattr(config, "stop", "")):
        raise LabelError("this preset selects the epoch by validation accuracy: give --labels, or --set select=last")

    def fit(number: int, method: Method) -> protocol.Judged:
        with _epoch_bar(f"seed {number}", getattr(config, "epochs", 0)) as on_epoch:
            return protocol.run_seed(
                loaded, config, number, method=method, probe=probe, on_epoch=on_epoch, device=device
            )

    if world.rank() > 0:  # process 0 writes, and knows how many seeds are finished
        for number in range(seed + world.from_first(lambda: 0), seed + seeds):
            fit(number, chosen)
        return
    identity = identify(loaded, config, method=chosen.name, seed=seed, probe=probe, device=device)
    if resume and (metrics := finished(output, identity, seeds)) is not None:
        world.from_first(lambda: seeds)
        log.info("%s is finished already", output)
        _print_metrics(metrics, loaded, json_)
        return
    with new_run(output, force=force, resume=resume) as folder:
        unfinished = Unfinished(folder, identity, checkpoint_seconds)
        fitting = with_checkpoints(unfinished.checkpoints) if chosen.name == "spikegcl" else chosen
        for number in range(seed + world.from_first(lambda: len(unfinished.rows)), seed + seeds):
            judged = fit(number, fitting)
            if number == seed and judged.fitted.trained is not None:
                write_run(folder, loaded, judged.trained, source, seed=seed, preset=preset)
            elif number == seed:
                write_method_run(folder, loaded, judged.fitted, source, method=chosen.name, seed=seed, preset=preset)
            unfinished.finish_seed(judged.row)
        rows = unfinished.rows[:seeds]
        metrics = {**protocol.summarise(rows), "preset": preset, "run": str(output), "identity": identity, "rows": rows}
        write_metrics(folder, metrics)
    if report and chosen.name == "spikegcl":
        _draw_report(output, loaded)
    _advise(metrics, config)
    _print_metrics(metrics, loaded, json_)


def _name_idle(config: Settings, given: list[str]) -> None:
    """Say which of the given settings change nothing, and for which of these epochs would help."""
    from spikegcl.config import LEARNING, Config, unread

    if not isinstance(config, Config) or config.inputs != "components":
        return
    names, never = {setting.partition("=")[0].strip() for setting in given}, unread(config)
    if idle := sorted(names & never):
        log.warning("these settings change nothing in a model of components, leave them out: %s", ", ".join(idle))
    if (idle := sorted(names & LEARNING - never)) and not config.epochs:
        log.warning("these settings change nothing without training, try --set epochs=10: %s", ", ".join(idle))


def _advise(metrics: dict[str, Any], config: Settings) -> None:
    """Say so where codes are worth less than a floor, or where much of them is empty, and what to try."""
    from spikegcl.config import Config

    if not isinstance(config, Config):
        return
    floors = {name: floor["mean"] for name, floor in metrics.get("floors", {}).items()}
    best = max(floors, key=lambda name: floors[name], default=None)
    if best is not None and (behind := 100 * (floors[best] - metrics["test_accuracy"]["mean"])) > BEHIND:
        compact = config.inputs == "components"
        tries = "--set propagation=pagerank, hops or none" if compact else "--preset compact"
        log.warning("these codes are %.1f points below a floor, the %s; try %s", behind, _FLOORS[best], tries)
    if metrics["dead_bits"] > DEAD * metrics["bits"]:
        log.warning(
            "%.0f of %d bits never fire; scale features to mean 0 and deviation 1, or lower the threshold",
            metrics["dead_bits"],
            metrics["bits"],
        )


def _print_metrics(metrics: dict[str, Any], graph: Graph, json_: bool) -> None:
    if json_:
        print(json.dumps(metrics))
    else:
        _print_summary(metrics, graph)


def demo(
    output: Output = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the random numbers.")] = 0,
    json_: Json = False,
) -> None:
    """Train on the embedded graph in seconds, print what the codes are worth, write a run folder.

    An earlier run on that graph is replaced, any other is not.
    """
    from spikegcl.runs import open_run

    earlier = False
    if (output / "config.toml").is_file():
        with contextlib.suppress(RunError):  # a run of another method, or a damaged one
            earlier = open_run(output).source.name == "digits"
        if not earlier:
            raise RunError(f"{output} exists already and is no run of the demo; choose another --output")
    train("digits", output=output, seed=seed, force=earlier, json_=json_)


def _draw_report(run: Path, graph: Graph) -> None:
    """Add report.html to a run that is already in its place: a picture that fails does not cost what it shows."""
    from spikegcl.report import write_report
    from spikegcl.runs import open_run

    try:
        write_report(open_run(run), graph)
    except (SpikeGCLError, OSError) as error:
        log.warning("report.html was not drawn (%s); the run is complete, try `spikegcl report %s`", error, run)


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
            progress.update(task, completed=epoch.epoch, description=f"{title}, loss {epoch.loss:.4f}")

        yield advance


_FLOORS = {"untrained": "untrained encoder", "projection": "random projection", "ppr-itq": "closed form ppr-itq"}


def _print_summary(metrics: dict[str, Any], graph: Graph) -> None:
    rows = table("", "")
    rows.add_row("graph", repr(graph))
    for note in metrics["rows"][0].get("notes", ()):
        kind, _, chosen = note.partition(": ")
        rows.add_row(f"  {kind}", chosen)
    if "test_accuracy" in metrics:
        count, probe = len(metrics["seeds"]), metrics["probe"]
        judge = "own predictions" if probe == "own" else f"{probe} probe"
        rows.add_row(
            "test accuracy", f"{percent(metrics['test_accuracy'], count)} ({judge}, {count} seed{'s' * (count > 1)})"
        )
        for name, accuracy in metrics["floors"].items():
            rows.add_row(f"  floor: {_FLOORS.get(name, name)}", percent(accuracy, count))
    else:
        rows.add_row("test accuracy", "no labels given")
    if "bits" in metrics:
        size = (metrics["bits"] + 7) // 8 * graph.num_nodes
        rows.add_row("bits per node", str(metrics["bits"]))
        rows.add_row("size", f"{size / 1e6:.2f} MB packed, {size * 32 / 1e6:.2f} MB as float32 of the same width")
        firing = f"{100 * metrics['firing_rate']:.1f} %"
        rows.add_row(
            "firing rate",
            f"{firing} ({metrics['dead_bits']:.0f} bits never fire, {metrics['constant_bits']:.0f} always)",
        )
    if "dimensions" in metrics:
        rows.add_row("dimensions", str(metrics["dimensions"]))
        rows.add_row("size", f"{4 * metrics['dimensions'] * graph.num_nodes / 1e6:.2f} MB as float32")
    rows.add_row("seconds", ", ".join(f"{name} {value:.2f}" for name, value in metrics["seconds"].items()))
    rows.add_row("peak memory", f"{metrics['peak_mb']:.0f} MB")
    rows.add_row("run folder", metrics["run"])
    console().print(rows)
