"""spikegcl estimate."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Annotated

import typer

from spikegcl.commands.common import (
    GRAPH_HELP,
    PRESET_HELP,
    DataRoot,
    Features,
    Json,
    console,
    load,
    table,
    with_settings,
)
from spikegcl.errors import PresetMissingError


def estimate(
    graph: Annotated[str, typer.Argument(help=GRAPH_HELP)],
    features: Features = None,
    preset: Annotated[str, typer.Option(help=PRESET_HELP)] = "default",
    bits: Annotated[int | None, typer.Option(min=1, help="Bits per node; 256 unless given.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, may be repeated.")] = None,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """Memory, time and size of a training before it starts, from a short probe of this machine."""
    import psutil

    from spikegcl.config import preset as find_preset
    from spikegcl.estimate import MB, probe_machine, probe_process
    from spikegcl.estimate import estimate as estimate_training
    from spikegcl.session import check_graph

    # Settings are checked and the process is measured before the graph is in memory: its size then is that of the
    # libraries alone. The probe, which takes seconds, waits until the graph is known to be one.
    pairs = [*(settings or []), *([] if bits is None else [f"bits={bits}"])]
    with contextlib.suppress(PresetMissingError):  # it may know the graph by the name it gets when it is read
        with_settings(find_preset(preset, graph), pairs)
    process = probe_process()
    loaded, _ = load(graph, features, None, None, data_root)
    config = with_settings(find_preset(preset, loaded.name), pairs)
    check_graph(loaded)
    expected = estimate_training(loaded, config, probe_machine(process=process))
    available = psutil.virtual_memory().available / MB
    document = {**asdict(expected), "seconds_total": expected.seconds_total, "available_mb": available}
    if json_:
        print(json.dumps(document))
        return
    rows = table("", "")
    rows.add_row("graph", repr(loaded))
    rows.add_row("memory", f"{expected.peak_mb:,.0f} MB at the peak ({available:,.0f} MB are free)")
    rows.add_row("one epoch", f"{expected.seconds_epoch:.2f} s")
    rows.add_row("training", f"{expected.seconds_train:.1f} s ({expected.epochs} epochs)")
    rows.add_row("embedding", f"{expected.seconds_embed:.2f} s")
    rows.add_row("bits per node", f"{expected.bits} ({expected.steps} steps of {expected.channels} channels)")
    rows.add_row("codes", f"{expected.codes_mb:.2f} MB, {expected.float_mb:.2f} MB as float32 of the same width")
    rows.add_row("parameters", f"{expected.parameters:,}")
    console().print(rows)
    print("reading the graph, probes and floors take time of their own")
    if expected.peak_mb > available:
        print("this will not fit: train with --parts, fewer channels or steps, or on a machine with more memory")
