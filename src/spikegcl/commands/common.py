"""What the commands share: options, loading a graph, printing for people."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.errors import ConfigError, LabelError, WriteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spikegcl.codes import Codes
    from spikegcl.config import Config
    from spikegcl.graph import Graph
    from spikegcl.runs import Run, Source

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; logs go to stderr.")]
GRAPH_HELP = "A dataset's name (see `spikegcl datasets`), an edge list file, or a prepared folder."
DataRoot = Annotated[
    Path | None,
    typer.Option(
        envvar="SPIKEGCL_DATA",
        help="Folder with raw benchmark files (PyG's raw layout); missing ones are downloaded.",
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Run folder to write.")]
Features = Annotated[Path | None, typer.Option(help="Features: .npy, scipy .npz, or CSV/Parquet keyed by id.")]
Labels = Annotated[Path | None, typer.Option(help="Labels: CSV/Parquet keyed by id, or .npy by row.")]
SplitFile = Annotated[Path | None, typer.Option("--split", help="Split: CSV/Parquet with id and part.")]
PRESET_HELP = "compact (the default) or contrastive (any graph), paper (its datasets); other methods have their own."
Parts = Annotated[
    int | None,
    typer.Option(min=1, help="Cut the graph into so many parts: less memory. Default: one for each process."),
]
Device = Annotated[str, typer.Option(help="torch device: cpu, cuda, ...")]


def load(graph: str | None, features: Any, labels: Any, split: Any, data_root: Path | None) -> tuple[Graph, Source]:
    """A graph from a dataset's name or from files, and where it came from."""
    from spikegcl.datasets import load_dataset
    from spikegcl.readers import read_graph
    from spikegcl.runs import Source
    from spikegcl.structural import structural_features

    if graph is None:
        raise ConfigError("this run does not say where its graph came from")
    if names_dataset(graph):
        if features or labels or split:
            raise ConfigError(f"{graph} is a dataset with its own features and labels; leave the file options out")
        return load_dataset(graph, data_root), Source(name=graph)
    loaded = read_graph(graph, features=features, labels=labels, split=split)
    files = {"edges": graph, "features": features, "labels": labels, "split": split}
    source = Source(**{key: str(Path(value).resolve()) for key, value in files.items() if value is not None})
    return (structural_features(loaded) if loaded.features is None else loaded), source


def names_dataset(graph: str) -> bool:
    """Whether ``graph`` is a dataset's name, and not a file or a prepared graph that is called so."""
    from spikegcl.datasets import is_dataset
    from spikegcl.prepared import is_prepared

    return is_dataset(graph) and not (Path(graph).is_file() or is_prepared(graph))


def labelled(codes: Codes, labels: Path | None, split: Path | None) -> Graph:
    """Labels and split of the nodes of ``codes``, in a graph without edges; the files may be about more nodes."""
    import numpy as np

    from spikegcl.graph import build_graph
    from spikegcl.readers import read_labels, read_split

    if labels is None:
        raise LabelError("these codes come without labels; give --labels FILE")
    return build_graph(
        np.zeros((2, 0), int),
        num_nodes=len(codes),
        ids=codes.ids,
        labels=read_labels(labels, codes.ids, ignore_unknown=True),
        split=None if split is None else read_split(split, codes.ids, ignore_unknown=True),
    )


def load_source(source: Source, data_root: Path | None, *, labels: bool = False) -> Graph:
    """The graph a run was trained on, read again; the files of ``labels`` and split only if they are wanted."""
    judged = (source.labels, source.split) if labels else (None, None)
    return load(source.name or source.edges, source.features, *judged, data_root)[0]


def keep_inputs(output: Path, run: Run, inputs: Sequence[Path] = (), *, but: str | None = None) -> None:
    """Refuse to replace what an output is made of: ``inputs``, the files that are the run, and those it was made of.

    ``but`` is the name of a file in the run folder that is no input.
    """
    from spikegcl.runs import FILES

    taken = (*inputs, *run.source.files, *(run.path / name for name in FILES if name != but))
    files = itertools.chain.from_iterable(path.iterdir() if path.is_dir() else (path,) for path in taken)
    if output.exists() and any(file.exists() and output.samefile(file) for file in files):
        raise WriteError(
            f"{output} is an input of this command, or belongs to the run or its graph; choose another --output"
        )


def with_settings(config: Config, settings: list[str]) -> Config:
    """The config with every ``key=value`` of --set applied."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise typer.BadParameter(f"{setting!r} is not key=value", param_hint="--set")
        pairs[key.strip()] = value.strip()
    if {"bits", "steps"} <= pairs.keys():
        raise typer.BadParameter("bits decide the steps (bits / channels); give one of the two", param_hint="--set")
    return config.replace(**pairs)


def console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)  # ids and paths may look like either


def table(*headers: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, header in enumerate(headers):
        # Folded, never cut off: an id that is not whole is of no use.
        table.add_column(header, justify="left" if number < 2 else "right", overflow="fold")
    return table


def percent(value: Any, seeds: int) -> str:
    """Mean and standard deviation; one seed has no spread to show."""
    return f"{100 * value['mean']:.2f} %" + f" ± {100 * value['std']:.2f}" * (seeds > 1)
