"""Codes of graphs with few real columns: what `compact` does with them, against what it does with many.

python -m benchmarks.columns      -> results/compact/columns.md

Generated graphs of 2000 nodes and 6 classes, whose columns are the class mean plus noise; 64 bits, test accuracy of the
`logreg` probe. ``many`` brings rows to unit length and cuts rotations at their medians; ``few`` does neither.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.run import ROOT, table
from spikegcl.bits import pack
from spikegcl.closed_forms import SINGLE_RATE, fit_channels
from spikegcl.components import component_count, fit_components
from spikegcl.datasets import load_dataset, make_split
from spikegcl.files import write_text
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread
from spikegcl.sources import Sources, choose_sources

if TYPE_CHECKING:
    from spikegcl.graph import Graph

BITS, SEEDS = 64, 3


def generate(columns: int, seed: int) -> Graph:
    graph, rng = load_dataset("sbm:nodes=2000,classes=6,degree=6"), np.random.default_rng(seed)
    means = 1.5 * rng.standard_normal((6, columns))
    features = means[graph.labels] + 1.5 * rng.standard_normal((graph.num_nodes, columns))
    return dataclasses.replace(graph, features=features.astype(np.float32), columns=None)


def accuracy(graph: Graph, seed: int, *, many: bool) -> float:
    base = choose_sources(graph)[-1].propagation
    components, scores = fit_components(graph, component_count(BITS), unit=many, propagation=base, seed=seed)
    directions, shares = fit_channels(Sources((components,), graph.num_features), scores, BITS, seed=seed)
    if many:
        shares = np.where(shares == np.float32(SINGLE_RATE), shares, np.float32(0.5))
    values = scores @ directions
    ones = values > [np.quantile(column, 1 - share) for column, share in zip(values.T, shares, strict=True)]
    split = make_split(graph, seed)
    return linear_probe(pack(ones), graph.labels, split, kind="logreg", bits=BITS, seed=seed).test_accuracy


def main() -> None:
    lines = []
    for columns in (1, 2, 4, 7, 8, 16):
        graphs = [generate(columns, seed) for seed in range(SEEDS)]
        cells = [
            spread(accuracy(graph, seed, many=many) for seed, graph in enumerate(graphs)) for many in (True, False)
        ]
        lines.append([str(columns), *(f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" for cell in cells)])
    text = table(f"{BITS} bits, {SEEDS} seeds, test accuracy in %", ["columns", "many", "few"], lines)
    write_text(ROOT / "results" / "compact" / "columns.md", text)
    print(text)


if __name__ == "__main__":
    main()
