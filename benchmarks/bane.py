"""BANE on the real ogbn-arxiv topology with generated features, where the SpikeGCL paper prints "> 3 days".

    python -m benchmarks.bane

One thread; seconds of CPU, which on a quiet machine are those of the clock. ``error`` is ||S - B M||^2 / ||S||^2: what
the bits leave of the smoothed features. Numbers go to results/performance/bane.json.
"""

from __future__ import annotations

import time

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measure import graph_and_config
from benchmarks.run import save, table
from spikegcl.baselines.bane import METHOD, best_basis, factorise, principal_rows


def main() -> None:
    numba.set_num_threads(1)
    graph, _ = graph_and_config("arxiv-topology", [])
    settings = METHOD.settings_for().replace(rank=graph.num_features)  # all there is to keep
    with threadpool_limits(1):
        started = time.process_time()
        rows = principal_rows(graph, settings, 0)
        smoothed = time.process_time()
        signs = factorise(rows, settings, 0)
        done = time.process_time()
        left = rows - signs @ best_basis(signs, rows, settings.alpha)
    row = {
        "graph": "arxiv-topology",
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "bits": settings.bits,
        "seconds": {"smooth": smoothed - started, "factorise": done - smoothed, "all": done - started},
        "error": float(np.square(left).sum() / np.square(rows).sum()),
    }
    save("bane", [row])
    cells = [f"{row['seconds'][part]:.1f} s" for part in ("smooth", "factorise", "all")]
    header = ["", "nodes", "edges", "features", "bits", "smooth", "factorise", "all", "error"]
    numbers = [str(row[key]) for key in ("graph", "nodes", "edges", "features", "bits")]
    print(table("BANE, one thread", header, [[*numbers, *cells, f"{row['error']:.2f}"]]))


if __name__ == "__main__":
    main()
