"""What larger graphs would need, by the measured rows: results/scale/projection.md. Nothing was run at that size.

    python -m benchmarks.projection

Processor seconds of a command are taken as fixed + a * nodes + b * edges, none of them negative, and fitted to the rows
of benchmarks/scale.py whose edges lead nearby, in relative error. Bytes on disk follow from the format and are compared
with the rows; memory is that of the largest graph measured, per node.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.scale import FEATURES, RESULTS
from spikegcl.files import write_text

SIZES, EDGES_PER_NODE = (10**7, 10**8, 10**9), 7.5
NODE_BYTES = 4 * FEATURES + 8 + 8  # float32 features, a row start, an id
EDGE_BYTES = 2 * 4  # both directions, int32


def measured(name: str) -> list[dict[str, Any]]:
    rows = map(json.loads, (RESULTS / name).read_text().splitlines())
    return [row for row in rows if row.get("far") == 0]


def fit(runs: list[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Fixed seconds, seconds a node and seconds an edge from (nodes, edges, seconds)."""
    nodes, edges, seconds = np.array(runs, float).T
    found = nnls(np.stack([np.ones_like(nodes), nodes, edges], 1) / seconds[:, None], np.ones(len(runs)))[0]
    return float(found[0]), float(found[1]), float(found[2])


def lines() -> list[str]:
    prepared, trained = measured("prepare.jsonl"), measured("train.jsonl")
    commands = {"prepare": [(row["nodes"], row["edges"], row["processor_seconds"]) for row in prepared]}
    largest = {"prepare": max(prepared, key=lambda row: row["nodes"])}
    for preset in ("contrastive", "compact"):
        rows = [row for row in trained if row["preset"] == preset]
        top = max(rows, key=lambda row: row["nodes"])
        for stage in ("train", "embed"):
            name = f"{stage}, {preset} ({top['bits']} bits)"
            commands[name] = [(row["nodes"], row["edges"], row[stage]["processor_seconds"]) for row in rows]
            largest[name] = top | top[stage]
    out = [
        "Measured, by command: processor seconds as fixed + a x nodes + b x edges, and memory of the largest graph.",
        "",
        "| command | runs | fixed s | µs a node (a) | µs an edge (b) | nodes | memory, MB | with mapped files, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    laws = {name: fit(runs) for name, runs in commands.items()}
    for name, (fixed, node, edge) in laws.items():
        top = largest[name]
        peaks = f"{top['nodes']:.0e} | {top['peak_anonymous_mb']:.0f} | {top['peak_mb']:.0f}"
        out.append(f"| {name} | {len(commands[name])} | {fixed:.1f} | {1e6 * node:.2f} | {1e6 * edge:.2f} | {peaks} |")
    top = largest["prepare"]
    expected = (NODE_BYTES * top["nodes"] + EDGE_BYTES * top["edges"]) / 1e6
    out += [
        "",
        f"On disk {NODE_BYTES} bytes a node ({FEATURES} features of 4, row start 8, id 8) and {EDGE_BYTES} an edge: "
        f"{expected:.0f} MB for the largest graph, measured {top['prepared_mb']:.0f} MB.",
        "",
        f"**Projection**, not measured: {EDGES_PER_NODE} edges a node, {FEATURES} features, the same machine.",
        "",
        "| | " + " | ".join(f"{size:.0e} nodes" for size in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]

    def row(what: str, values: list[float], form: str) -> str:
        return f"| {what} | " + " | ".join(format(value, form) for value in values) + " |"

    graph = [(NODE_BYTES + EDGE_BYTES * EDGES_PER_NODE) * size / 1e9 for size in SIZES]
    out.append(row(f"prepared graph, GB: ({NODE_BYTES} + {EDGE_BYTES} x {EDGES_PER_NODE}) x nodes", graph, ".0f"))
    files = [4 * 4 * FEATURES * size / 1e9 for size in SIZES]
    out.append(row(f"temporary files of compact, GB: 4 arrays x 4 x {FEATURES} x nodes", files, ".0f"))
    for name, (fixed, node, edge) in laws.items():
        hours = [(fixed + (node + edge * EDGES_PER_NODE) * size) / 3600 for size in SIZES]
        out.append(row(f"{name}, processor hours: fixed + (a + b x {EDGES_PER_NODE}) x nodes", hours, ".1f"))
    for name, top in largest.items():
        if name != "prepare":  # its memory is what it is given
            each = top["peak_anonymous_mb"] * 1e6 / top["nodes"]
            gigabytes = [each * size / 1e9 for size in SIZES]
            out.append(row(f"{name}, memory in GB at {top['parts']} parts: {each:.0f} bytes x nodes", gigabytes, ".0f"))
    return out


if __name__ == "__main__":
    write_text(RESULTS / "projection.md", "\n".join(lines()) + "\n")
