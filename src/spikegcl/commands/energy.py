"""spikegcl energy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from spikegcl.commands.common import DataRoot, Json, console, load_source, table


def energy(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    mac: Annotated[float, typer.Option(min=0, help="Picojoules of a multiply-accumulate.")] = 4.6,
    sop: Annotated[float, typer.Option(min=0, help="Picojoules of a spike.")] = 3.7,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """What one pass of a run's model over its graph costs, by three rules, layer by layer."""
    from spikegcl.energy import RULES, Constants, energies, measure
    from spikegcl.energy import table as layer_table
    from spikegcl.runs import open_run

    opened = open_run(run)
    graph = load_source(opened.source, data_root)
    model, columns = opened.model()
    constants = Constants(mac * 1e-12, sop * 1e-12)
    operations = measure(model, graph, columns)
    total, layers = energies(operations, constants), layer_table(operations, constants)
    fired = graph.num_nodes * model.bits
    rate = operations.spikes / fired if fired else 0.0
    document = {
        "run": str(run),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "bits": model.bits,
        "graph_changed": graph.hash != opened.graph_hash,
        "constants": asdict(constants),
        "macs": operations.macs,
        "spikes": operations.spikes,
        "firing_rate": rate,
        "spikes_per_step": list(operations.spikes_per_step),
        "layers": layers,
        "joules": total,
    }
    if json_:
        print(json.dumps(document))
        return
    if document["graph_changed"]:
        print("the graph is not the one this run was trained on: its hash differs")
    rows = table("layer", "", "products", "along edges", "spikes", *RULES)
    for layer in layers:
        counts = [f"{layer[key] / 1e6:,.2f} M" for key in ("products", "aggregation", "spikes")]
        rows.add_row(layer["layer"], "", *counts, *(f"{1e3 * layer['joules'][rule]:.4f}" for rule in RULES))
    sums = [f"{sum(layer[key] for layer in layers) / 1e6:,.2f} M" for key in ("products", "aggregation", "spikes")]
    rows.add_row("all", "", *sums, *(f"{1e3 * total[rule]:.4f}" for rule in RULES))
    console().print(rows)
    print(f"in millijoules, with {mac} pJ a multiply-accumulate, {sop} pJ a spike, firing rate {100 * rate:.1f} %")
