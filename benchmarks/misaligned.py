"""Why is BANE so much better here than in the SpikeGCL paper? Rows of features against the wrong rows of the graph.

    python -m benchmarks.misaligned [--datasets cora,citeseer,...] [--seeds 3]

A public Python port of BANE numbers the nodes of the graph as they first appear in the list of edges, and the rows of
features by id: a node keeps its own features, but its neighbours are those of another node. Measured are the settings
of the authors on aligned rows, and those of the port, the defaults of its code and those of its README, on both aligned
and misaligned rows. Rows and table go to results/misaligned.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.published import data_root
from benchmarks.run import GRAPHS, ROOT, table
from spikegcl.baselines.bane import METHOD, fit
from spikegcl.datasets import load_dataset, make_split
from spikegcl.experiments.paper import accuracy
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.graph import Graph

RESULTS = ROOT / "results" / "misaligned"
PORT = {"bits": 48, "rank": 48, "order": 1, "gamma": 0.7, "alpha": 0.01, "rounds": 10, "sweeps": 5}
README = {**PORT, "gamma": 0.1, "alpha": 0.7}
KINDS = {
    "authors": ({}, False),
    "port": (PORT, False),
    "port, misaligned": (PORT, True),
    "its README": (README, False),
    "its README, misaligned": (README, True),
}


def number_by_edges(graph: Graph) -> Graph:
    """The graph whose node i has the features and label of node i, and the edges of the i-th node in the edge list."""
    edges = graph.adjacency.tocoo()
    listed = np.stack([edges.row, edges.col], 1).ravel()
    seen, first = np.unique(listed, return_index=True)
    order = np.concatenate([seen[np.argsort(first)], np.setdiff1d(np.arange(graph.num_nodes), seen)])
    moved = graph.adjacency[order][:, order]
    moved.sort_indices()
    return replace(graph, indptr=moved.indptr.astype(np.int64), indices=moved.indices.astype(np.int32))


def measure(name: str, seed: int) -> dict[str, Any]:
    graph = load_dataset(name, data_root())
    split, published, moved = make_split(graph, seed), METHOD.settings_for("paper", name), number_by_edges(graph)
    row: dict[str, Any] = {"dataset": name, "seed": seed}
    for kind, (changes, misaligned) in KINDS.items():
        fitted = fit(moved if misaligned else graph, published.replace(**changes), seed=seed)
        probe = linear_probe(fitted.codes, graph.labels, split, kind="logreg", bits=fitted.bits, seed=seed)
        row[kind] = probe.test_accuracy
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(GRAPHS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    numba.set_num_threads(1)
    names = options.datasets.split(",")
    with threadpool_limits(1):
        rows = [measure(name, seed) for name in names for seed in range(options.seeds)]
    shown = []
    for name in names:
        of_name = [row for row in rows if row["dataset"] == name]
        cells = [spread(row[kind] for row in of_name) for kind in KINDS]
        shown.append(
            [name, *(f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" for cell in cells), accuracy("bane", name)]
        )
    title = f"BANE, test accuracy in %, {options.seeds} seeds, probe `logreg`"
    text = table(title, ["dataset", *KINDS, "SpikeGCL paper"], shown)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
