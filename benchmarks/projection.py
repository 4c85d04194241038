"""What larger graphs would need, by the measured rows: results/scale/projection.md. Nothing was run at that size.

    python -m benchmarks.projection

The largest graph of benchmarks/scale.py whose edges lead nearby gives processor seconds and memory per node; a graph
with as many edges per node is taken to need as much per node at any size. Bytes on disk follow from the format.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.scale import FEATURES, RESULTS
from spikegcl.files import write_text

SIZES = (10**8, 10**9)
NODE_BYTES = 4 * FEATURES + 8 + 8  # float32 features, a row start, an id
EDGE_BYTES = 2 * 4  # both directions, int32
TEMPORARY = 4 * 4 * FEATURES  # four arrays of as many float32 components as there are features
TRAFFIC = 20 * 3 * 4 * FEATURES  # two propagations of ten hops; each reads two such arrays and writes one


def largest(name: str, **wanted: Any) -> dict[str, Any]:
    """The last row of the most nodes among those with these values and no far edges."""
    rows = map(json.loads, (RESULTS / name).read_text().splitlines())
    wanted = {"far": 0, **wanted}
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: row["nodes"])[-1]


def lines() -> list[str]:
    graph = largest("prepare.jsonl")
    nodes, edges = graph["nodes"], graph["edges"]
    stages = {"prepare": graph}
    for preset in ("contrastive", "compact"):
        row = largest("train.jsonl", preset=preset, nodes=nodes)
        stages |= {f"{stage}, {preset}": {**row, **row[stage]} for stage in ("train", "embed")}
    out = [
        f"Measured: {nodes:,} nodes, {edges:,} edges, {FEATURES} features, {row['bits']} bits, {row['parts']} parts.",
        "",
        "| command | seconds | of processors | µs a node | µs an edge | memory, MB | bytes a node | with files, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, seen in stages.items():
        used, memory = seen["processor_seconds"], seen["peak_anonymous_mb"]
        out.append(
            f"| {name} | {seen['seconds']:.0f} | {used:.0f} | {1e6 * used / nodes:.1f} | {1e6 * used / edges:.2f} | "
            f"{memory:.0f} | {1e6 * memory / nodes:.0f} | {seen['peak_mb']:.0f} |"
        )
    disk = (NODE_BYTES * nodes + EDGE_BYTES * edges) / 1e6
    out += [
        "",
        f"On disk {NODE_BYTES} bytes a node ({FEATURES} features of 4, row start 8, id 8) and {EDGE_BYTES} an edge "
        f"(two directions of 4): {disk:.0f} MB; measured {graph['prepared_mb']:.0f} MB.",
        "",
        f"**Projection, not measured**: {edges / nodes:.1f} edges a node and everything else as above.",
        "",
        "| | arithmetic | " + " | ".join(f"{size:.0e} nodes" for size in SIZES).replace("e+0", "e") + " |",
        "|---|---|" + "---|" * len(SIZES),
    ]

    def add(what: str, arithmetic: str, each: float, unit: float) -> None:
        values = " | ".join(f"{each * size / unit:,.{'0f' if each * size >= 100 * unit else '2g'}}" for size in SIZES)
        out.append(f"| {what} | {arithmetic} | {values} |")

    each = edges / nodes
    add("prepared graph, GB", f"{NODE_BYTES} + {EDGE_BYTES} x {each:.1f} bytes", NODE_BYTES + EDGE_BYTES * each, 1e9)
    add("temporary files of compact, GB", f"4 arrays x 4 x {FEATURES} bytes", TEMPORARY, 1e9)
    add("read and written by its fit if larger than memory, TB", f"20 hops x 3 x 4 x {FEATURES} bytes", TRAFFIC, 1e12)
    add("codes with ids, GB", f"{row['bits']} / 8 + 8 bytes", row["bits"] / 8 + 8, 1e9)
    for name, seen in stages.items():
        used = seen["processor_seconds"] / nodes
        add(f"{name}: processor hours", f"{1e6 * used:.1f} µs", used, 3600)
    for name, seen in list(stages.items())[1:]:
        memory = 1e6 * seen["peak_anonymous_mb"] / nodes
        add(f"{name}: memory at {row['parts']} parts, GB", f"{memory:.0f} bytes", memory, 1e9)
    return out


if __name__ == "__main__":
    write_text(RESULTS / "projection.md", "\n".join(lines()) + "\n")
