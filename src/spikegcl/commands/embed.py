"""spikegcl embed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spikegcl.commands.common import DataRoot, Device, Json, load_source


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
    loaded = load_source(opened.source, data_root)
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
