"""The command line. Every command prints a summary for people or, with --json, one JSON document on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl import __version__
from spikegcl.errors import ConfigError, LabelError, SpikeGCLError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spikegcl.codes import Codes
    from spikegcl.config import Config
    from spikegcl.graph import Graph
    from spikegcl.runs import Source
    from spikegcl.training import Epoch

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; logs go to stderr.")]
DataRoot = Annotated[
    Path | None, typer.Option(envvar="SPIKEGCL_DATA", help="Folder with raw benchmark files (PyG's raw layout).")
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Run folder to write.")]
Features = Annotated[Path | None, typer.Option(help="Features: .npy, scipy .npz, or CSV/Parquet keyed by id.")]
Labels = Annotated[Path | None, typer.Option(help="Labels: CSV/Parquet keyed by id, or .npy by row.")]
SplitFile = Annotated[Path | None, typer.Option("--split", help="Split: CSV/Parquet with id and part.")]
Probe = Annotated[str, typer.Option(help="Linear probe: logreg or paper.")]
Device = Annotated[str, typer.Option(help="torch device: cpu, cuda, ...")]


def main() -> None:
    """Entry point: errors a user can act on end in one paragraph and exit code 1, wrong usage in exit code 2."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        app(standalone_mode=True)
    except SpikeGCLError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; nothing half-written was left behind", 130)
    except MemoryError:
        _fail("out of memory; fewer channels or a smaller graph need less")


def _fail(message: str, code: int = 1) -> None:
    print(f"Error: {message}", file=sys.stderr)
    raise SystemExit(code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """1-bit node codes for graphs, without labels."""
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def demo(output: Output = Path("runs/demo"), seed: int = 0, json_: Json = False) -> None:
    """Train on the embedded graph in seconds, print what the codes are worth, write a run folder."""
    train("digits", output=output, seed=seed, force=True, json_=json_)


@app.command()
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
    json_: Json = False,
) -> None:
    """Turn a graph into 1-bit codes, judge them beside their floors, write a run folder."""
    from spikegcl import protocol
    from spikegcl.config import preset as find_preset
    from spikegcl.probes import PROBES
    from spikegcl.runs import new_run, write_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    loaded, source = _load(graph, features, labels, split, data_root)
    config = _with_settings(find_preset(preset, loaded.name), settings or [])
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
    if json_:
        print(json.dumps(metrics))
    else:
        _print_summary(metrics, loaded)


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Code file to write.")] = Path("codes.arrow"),
    data_root: DataRoot = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Write the codes of a run's training graph again, from its model."""
    from spikegcl.runs import make_codes, open_run
    from spikegcl.training import embed_graph

    opened = open_run(run)
    source = opened.source
    loaded, _ = _load(source.name or source.edges, source.features, source.labels, source.split, data_root)
    model, columns = opened.model()
    codes = make_codes(embed_graph(model, loaded, columns, device), loaded, model)
    codes.save(output)
    result = {
        "codes": str(output),
        "nodes": len(codes),
        "bits": codes.bits,
        "graph_changed": loaded.hash != opened.graph_hash,
    }
    print(json.dumps(result) if json_ else f"{len(codes)} codes of {codes.bits} bits in {output}")


@app.command()
def probe(
    run: Annotated[Path, typer.Argument(help="Run folder or code file.")],
    labels: Labels = None,
    split: SplitFile = None,
    probe: Probe = "logreg",
    seeds: Annotated[int, typer.Option(min=1, help="How many splits to average over.")] = 1,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """How well a linear classifier reads the labels off the codes."""
    from spikegcl import protocol
    from spikegcl.codes import open_codes
    from spikegcl.datasets import make_split
    from spikegcl.probes import PROBES, linear_probe
    from spikegcl.runs import open_run

    if probe not in PROBES:
        raise typer.BadParameter(f"{probe!r} is unknown; choose {' or '.join(PROBES)}", param_hint="--probe")
    if run.is_dir():
        opened = open_run(run)
        codes, source = opened.codes(), opened.source
        if labels is None and (source.name or source.labels):
            judged, _ = _load(source.name or source.edges, source.features, source.labels, source.split, data_root)
        else:
            judged = _labelled(codes, labels, split)
    else:
        codes = open_codes(run)
        judged = _labelled(codes, labels, split)
    results = [
        linear_probe(codes.packed, judged.labels, make_split(judged, seed), kind=probe, bits=codes.bits, seed=seed)  # type: ignore[arg-type]
        for seed in range(seeds)
    ]
    document = {
        "codes": str(run),
        "probe": probe,
        "bits": codes.bits,
        "seeds": list(range(seeds)),
        "test_accuracy": protocol.spread(result.test_accuracy for result in results),
        "val_accuracy": protocol.spread(result.val_accuracy for result in results),
    }
    if json_:
        print(json.dumps(document))
    else:
        print(f"{probe} probe on {codes.bits} bits: test accuracy {_percent(document['test_accuracy'])}")


@app.command()
def datasets(data_root: DataRoot = None, json_: Json = False) -> None:
    """Named graphs, their sizes, and whether their files are at hand."""
    from dataclasses import asdict

    from spikegcl.datasets import DATASETS, available

    rows = [{**asdict(info), "available": available(name, data_root)} for name, info in DATASETS.items()]
    if json_:
        print(json.dumps(rows, default=str))
        return
    table = _table("name", "title", "nodes", "edges", "features", "classes", "split", "at hand")
    for row in rows:
        sizes = [f"{row[key]:,}" if row[key] else "any" for key in ("nodes", "edges", "features", "classes")]
        table.add_row(row["name"], row["title"], *sizes, row["split"], "yes" if row["available"] else "no")
    _console().print(table)


# ------------------------------------------------------------------------------------------------------ helpers


def _load(graph: str | None, features: Any, labels: Any, split: Any, data_root: Path | None) -> tuple[Graph, Source]:
    """A graph from a dataset's name or from files, and where it came from."""
    from spikegcl.datasets import is_dataset, load_dataset
    from spikegcl.readers import read_graph
    from spikegcl.runs import Source
    from spikegcl.structural import structural_features

    if graph is None:
        raise ConfigError("this run does not say where its graph came from")
    if is_dataset(graph) and not Path(graph).is_file():
        if features or labels or split:
            raise ConfigError(f"{graph} is a dataset with its own features and labels; leave the file options out")
        return load_dataset(graph, data_root), Source(name=graph)
    loaded = read_graph(graph, features=features, labels=labels, split=split)
    files = {"edges": graph, "features": features, "labels": labels, "split": split}
    source = Source(**{key: str(Path(value).resolve()) for key, value in files.items() if value is not None})
    return (structural_features(loaded) if loaded.features is None else loaded), source


def _labelled(codes: Codes, labels: Path | None, split: Path | None) -> Graph:
    """Labels and split of the nodes of ``codes``, in a graph without edges."""
    import numpy as np

    from spikegcl.graph import build_graph
    from spikegcl.readers import read_labels, read_split

    if labels is None:
        raise LabelError("these codes come without labels; give --labels FILE")
    return build_graph(
        np.zeros((2, 0), int),
        num_nodes=len(codes),
        ids=codes.ids,
        labels=read_labels(labels, codes.ids),
        split=None if split is None else read_split(split, codes.ids),
    )


def _with_settings(config: Config, settings: list[str]) -> Config:
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is not key=value", param_hint="--set")
        pairs[key.strip()] = value.strip()
    return config.replace(**pairs)


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def _table(*headers: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < 2 else "right")
    return table


@contextlib.contextmanager
def _epoch_bar(title: str, epochs: int) -> Iterator[Callable[[Epoch], None] | None]:
    """A progress bar with time left on a terminal, nothing in a pipe."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=epochs)

        def advance(epoch: Epoch) -> None:
            progress.update(task, advance=1, description=f"{title}, loss {epoch.loss:.4f}")

        yield advance


def _percent(value: Any) -> str:
    return f"{100 * value['mean']:.2f} % ± {100 * value['std']:.2f}"


def _print_summary(metrics: dict[str, Any], graph: Graph) -> None:
    table = _table("", "")
    size = (metrics["bits"] + 7) // 8 * graph.num_nodes
    table.add_row("graph", repr(graph))
    if "test_accuracy" in metrics:
        count = len(metrics["seeds"])
        table.add_row(
            "test accuracy",
            f"{_percent(metrics['test_accuracy'])} ({metrics['probe']} probe, {count} seed{'s' * (count > 1)})",
        )
        table.add_row("  floor: untrained encoder", _percent(metrics["floors"]["untrained"]))
        table.add_row("  floor: random projection", _percent(metrics["floors"]["projection"]))
    else:
        table.add_row("test accuracy", "no labels given")
    table.add_row("bits per node", str(metrics["bits"]))
    table.add_row("size", f"{size / 1e6:.2f} MB packed, {size * 32 / 1e6:.2f} MB as float32 of the same width")
    firing = f"{100 * metrics['firing_rate']:.1f} %"
    table.add_row(
        "firing rate", f"{firing} ({metrics['dead_bits']:.0f} bits never fire, {metrics['constant_bits']:.0f} always)"
    )
    table.add_row("seconds", ", ".join(f"{name} {value:.2f}" for name, value in metrics["seconds"].items()))
    table.add_row("peak memory", f"{metrics['peak_mb']:.0f} MB")
    table.add_row("run folder", metrics["run"])
    _console().print(table)
