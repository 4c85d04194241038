"""spikegcl embed."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikegcl.commands.common import (
    DataRoot,
    Device,
    Features,
    Json,
    Parts,
    keep_inputs,
    load,
    load_source,
    names_dataset,
)
from spikegcl.errors import CodesError

if TYPE_CHECKING:
    from spikegcl.codes import Codes
    from spikegcl.graph import Graph
    from spikegcl.runs import Run

log = logging.getLogger("spikegcl")

OTHER_FILES = (".parquet", ".csv", ".tsv", ".npy", ".npz")  # names that promise what a code file is not


def embed(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    graph: Annotated[
        str | None,
        typer.Argument(help="Another or a grown graph: edge list, prepared folder or dataset. Default: the run's own."),
    ] = None,
    features: Features = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Code file to write, or .json: one file a process and a manifest.")
    ] = Path("codes.arrow"),
    fill_missing: Annotated[
        str | None, typer.Option(help="What to take for feature columns that are missing: zero. Default: an error.")
    ] = None,
    parts: Parts = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Write codes by a run's model: of its training graph again, or of a graph with new nodes."""
    from spikegcl import world
    from spikegcl.inductive import compare_codes, match_columns
    from spikegcl.runs import make_codes, open_run
    from spikegcl.training import embed_graph

    if fill_missing not in (None, "zero"):
        raise typer.BadParameter(f"{fill_missing!r} is unknown; choose zero", param_hint="--fill-missing")
    if graph is None and features is not None:
        raise typer.BadParameter("give the edge list of these nodes too", param_hint="--features")
    opened = open_run(run)
    trained = _trained_codes(opened)
    given = [Path(path) for path in (graph, features) if path is not None]
    keep_inputs(output, opened, given, but="codes.arrow" if graph is None and trained is None else None)
    if output.suffix.lower() in OTHER_FILES:
        raise CodesError(f"{output} would be an Arrow file; name it {output.stem}.arrow, which pandas and polars read")
    model, columns = opened.model()
    known = None if trained is None else trained.ids
    loaded = load_source(opened.source, data_root) if graph is None else _read(graph, features, data_root)
    width = model.num_features
    matched = match_columns(loaded, columns, width, fill_missing=fill_missing, known=known)  # type: ignore[arg-type]
    packed = embed_graph(model, matched.graph, columns, device, known=known, parts=parts or world.size())
    codes = make_codes(packed, matched.graph, model)
    _write(codes, output)
    if world.rank() > 0:
        return
    document = {
        "codes": str(output),
        "nodes": len(codes),
        "bits": codes.bits,
        "graph_changed": matched.graph.hash != opened.graph_hash,
        "columns": {"matched_by": matched.by, "missing": list(matched.missing), "unknown": list(matched.unknown)},
        "change": None if trained is None else asdict(compare_codes(trained, codes)),
    }
    print(json.dumps(document) if json_ else _summary(document))


def _read(graph: str, features: Path | None, data_root: Path | None) -> Graph:
    """The graph as it is; whether it needs structural columns is for the model to say."""
    from spikegcl.readers import read_graph

    if names_dataset(graph):
        return load(graph, features, None, None, data_root)[0]
    return read_graph(graph, features=features)


def _write(codes: Codes, output: Path) -> None:
    """One file by process 0; or, for a manifest, a range of rows by each process, joined when all are there."""
    from spikegcl import world
    from spikegcl.shards import write_manifest

    if output.suffix != ".json":
        if world.rank() == 0:
            codes.save(output)
        return
    shards = [output.with_name(f"{output.stem}-{number}.arrow") for number in range(world.size())]
    low, high = (len(codes) * number // world.size() for number in (world.rank(), world.rank() + 1))
    codes[low:high].save(shards[world.rank()])
    world.wait_for_all()
    if world.rank() == 0:
        write_manifest(output, shards)


def _trained_codes(run: Run) -> Codes | None:
    """The codes of the training graph; embedding is also how to write them again when they are lost or damaged."""
    try:
        return run.codes()
    except CodesError as error:
        log.warning("old and new codes cannot be compared: %s", error)
        return None


def _summary(document: dict[str, Any]) -> str:
    lines = [f"{document['nodes']} codes of {document['bits']} bits in {document['codes']}"]
    if change := document["change"]:
        lines += [
            f"nodes: {change['nodes_new']} new, {change['nodes_old']} old, {change['nodes_gone']} gone",
            f"old nodes: {change['nodes_flipped']} have another code, {change['bits_flipped']} bits flipped "
            f"({100 * change['share_flipped']:.3g} %)",
        ]
    return "\n".join(lines)
