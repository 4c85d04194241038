"""Where an epoch goes, and how far the sparse product is from the speed of a plain copy."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time

from benchmarks.measure import graph_and_config, timed
from benchmarks.run import table

# Functions of the profile by the part of an epoch they belong to; what is left is Python and small tensors.
PARTS = {
    "sparse products": ("spmm",),
    "dense products": ("built-in method torch.mm",),
    "features": ("take_columns", "scatter_columns", "rows_of_columns", "rows_times_weight", "columns_times_grad"),
    "activation, dropout": ("activate", "activate_backward"),
    "neuron, head": ("score_spikes", "score_spikes_backward"),
    "edge dropping": ("keep_edges", "row_sums", "scale_edges"),
}


def measure(name: str) -> dict:
    import torch

    from spikegcl.memory import reuse_freed_memory
    from spikegcl.objectives import Margin
    from spikegcl.propagate import propagate
    from spikegcl.protocol import versions
    from spikegcl.session import Session

    reuse_freed_memory()
    graph, config = graph_and_config(name, [])
    session = Session(graph, config, 0)
    objective = Margin(session)
    objective.epoch(1)
    profile = cProfile.Profile()
    started = time.perf_counter()
    profile.runcall(objective.epoch, 2)
    total = time.perf_counter() - started
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own = dict.fromkeys(PARTS, 0.0)
    for (path, _, function), (_, _, seconds, _, _) in stats.items():
        for part, names in PARTS.items():
            if function.strip("<>{}") in names and ("kernels.py" in path or "built-in" in function):
                own[part] += seconds
    x = torch.randn(graph.num_nodes, 64)
    out = torch.empty_like(x)
    copy = statistics.median(timed(lambda: out.copy_(x), 9))
    product = statistics.median(timed(lambda: propagate(session.whole.operator, x), 9))
    stored = len(session.whole.operator.indices)
    return {
        "graph": name,
        "epoch_seconds": total,
        "parts": {**own, "rest": total - sum(own.values())},
        "copy_gb_s": 2 * x.numel() * 4 / copy / 1e9,
        # every stored edge reads a row of 64 floats, an index and a value; every row is written once
        "product_gb_s": (stored * (64 * 4 + 8) + x.numel() * 4) / product / 1e9,
        "product_ms": product * 1000,
        "versions": versions(),
    }


def draw(rows: list[dict]) -> str:
    names = [*PARTS, "rest"]
    shares = []
    for row in rows:
        total = row["epoch_seconds"]
        shares.append([row["graph"], f"{total:.2f}", *(f"{100 * row['parts'][name] / total:.0f} %" for name in names)])
    speeds = [
        [row["graph"], f"{row['product_ms']:.2f}", f"{row['product_gb_s']:.1f}", f"{row['copy_gb_s']:.1f}"]
        for row in rows
    ]
    header = ["graph", "ms (64 columns)", "GB/s moved by the product", "GB/s of a copy of the same array"]
    return (
        table("Where an epoch goes", ["graph", "seconds", *names], shares)
        + "\n"
        + table("The sparse product against a copy", header, speeds)
    )
