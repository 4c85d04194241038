"""spikegcl report."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikegcl.commands.common import DataRoot, Json, keep_inputs, load_source
from spikegcl.errors import SpikeGCLError

if TYPE_CHECKING:
    from spikegcl.graph import Graph
    from spikegcl.runs import Source

log = logging.getLogger("spikegcl")


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="HTML file to write. Default: report.html in the run folder.")
    ] = None,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """Draw the report of a run again: one HTML file that opens offline."""
    from spikegcl.report import write_report
    from spikegcl.runs import open_run

    opened = open_run(run)
    if output is not None:
        keep_inputs(output, opened)
    graph = _read(opened.source, data_root)
    start = time.perf_counter()
    path = write_report(opened, graph, output)
    size, seconds = path.stat().st_size, time.perf_counter() - start
    if json_:
        print(json.dumps({"report": str(path), "bytes": size, "seconds": seconds}))
    else:
        print(f"{path} ({size / 1e6:.2f} MB, {seconds:.1f} s)")


def _read(source: Source, data_root: Path | None) -> Graph:
    """The graph of a run, without labels if these cannot be read."""
    try:
        return load_source(source, data_root, labels=True)
    except SpikeGCLError as error:
        graph = load_source(source, data_root)
        log.warning("the report leaves out what needs labels: %s", error)
        return graph
