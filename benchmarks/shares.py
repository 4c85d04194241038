"""Codes of graphs with 8 to 40 components: rotations cut at medians alone, against several shares of firing nodes.

python -m benchmarks.shares      -> results/compact/shares.md

One source, propagated by PageRank; generated graphs of 3000 nodes; test accuracy of the `logreg` probe, three graphs
each. `ordered`: columns share one factor, and the label is how large it is. `classes`: scikit-learn's clusters, edges
mostly inside classes. `rare`: five classes, the largest with 80 % of the nodes. `people`: columns of an age, an income,
counts and noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import make_classification
from sklearn.neighbors import kneighbors_graph

from benchmarks.run import ROOT, table
from spikegcl import build_graph, closed_forms, train
from spikegcl.config import preset
from spikegcl.datasets import make_split
from spikegcl.files import write_text
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.graph import Graph

NODES, GRAPHS = 3000, 3
WIDTHS = {"ordered": (8, 12, 15, 24, 40), "classes": (10, 15, 24, 40), "rare": (12, 24), "people": (10,)}


def generate(kind: str, columns: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    if kind == "ordered":
        factor = rng.normal(size=NODES)
        features = factor[:, None] + 0.5 * rng.normal(size=(NODES, columns))
        nearest = kneighbors_graph(features, 6).tocoo()
        return build_graph(np.stack([nearest.row, nearest.col]), features, labels=np.digitize(factor, [-0.7, 0, 0.7]))
    if kind == "classes":
        features, labels = make_classification(
            NODES, columns, n_informative=6, n_redundant=2, n_classes=3, random_state=seed
        )
    elif kind == "rare":
        labels = rng.choice(5, NODES, p=[0.8, 0.1, 0.05, 0.03, 0.02])
        features = rng.normal(size=(5, columns))[labels] + 1.2 * rng.normal(size=(NODES, columns))
    else:
        labels = rng.integers(0, 4, NODES)
        counts = rng.poisson(np.exp(1 + 0.5 * labels)[:, None], (NODES, 4))
        ages, incomes = (
            20 + 12 * labels + 8 * rng.normal(size=NODES),
            np.exp(10 + 0.4 * labels + rng.normal(size=NODES)),
        )
        noise = rng.lognormal(0, 2, (NODES, columns - 6))
        features = np.column_stack([ages, incomes, counts, noise])
    return build_graph(_edges(labels, 5, 0.6, rng), features, labels=labels)


def _edges(labels: np.ndarray, degree: int, inside: float, rng: np.random.Generator) -> np.ndarray:
    """Random edges, so many of them inside classes."""
    source, target = rng.integers(0, NODES, (2, NODES * degree // 2))
    for label in np.unique(labels):
        own = np.flatnonzero((labels[source] == label) & (rng.random(len(source)) < inside))
        target[own] = rng.choice(np.flatnonzero(labels == label), len(own))
    return np.stack([source, target])


def accuracy(graph: Graph, bits: int, seed: int, few: int) -> float:
    closed_forms.FEW_COMPONENTS = few
    codes = train(graph, preset("compact", "").replace(bits=bits, propagation="pagerank"), seed=seed).codes
    return linear_probe(codes, graph.labels, make_split(graph, seed), kind="logreg", bits=bits).test_accuracy


def main() -> None:
    lines = []
    for kind, widths in WIDTHS.items():
        for columns in widths:
            graphs = [generate(kind, columns, seed) for seed in range(GRAPHS)]
            cells = [
                spread(accuracy(graph, bits, seed, few) for seed, graph in enumerate(graphs))
                for bits in (64, 256)
                for few in (0, columns + 1)
            ]
            shown = (f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" for cell in cells)
            lines.append([kind, str(columns), *shown])
            print(*lines[-1], sep="  ", flush=True)
    heads = [f"{bits} bits, {how}" for bits in (64, 256) for how in ("medians", "shares")]
    text = table(f"{GRAPHS} graphs, test accuracy in %", ["graph", "columns", *heads], lines)
    write_text(ROOT / "results" / "compact" / "shares.md", text)


if __name__ == "__main__":
    main()
