"""Graphs without features: how far their structural columns should be propagated.

python -m benchmarks.structural      -> results/compact/structural.md

The edges alone of real graphs (their features left out) and of generated ones; 256 bits, validation accuracy of the
`logreg` probe, three seeds.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from benchmarks.run import ROOT, table
from spikegcl import build_graph, load_dataset, sources, structural_features, train
from spikegcl.components import Propagation
from spikegcl.config import preset
from spikegcl.datasets import make_split
from spikegcl.files import write_text
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.graph import Graph

SEEDS, BITS = 3, 256
RESTARTS = (0.15, 0.1, 0.05, 0.02)
REAL = ("cora", "citeseer", "pubmed", "photo", "computers", "digits")
SBM = {"sbm, dense": "degree=8,homophily=0.6", "sbm, sparse": "degree=4,homophily=0.8"}


def generate(kind: str) -> Graph:
    if kind in SBM:
        return load_dataset(f"sbm:nodes=3000,classes=6,{SBM[kind]}")
    rng = np.random.default_rng(0)
    if kind == "grid":
        network = nx.convert_node_labels_to_integers(nx.grid_2d_graph(45, 45), label_attribute="pos")
    else:
        network = nx.random_geometric_graph(2500, 0.04, seed=0)
    places = np.array([network.nodes[node]["pos"] for node in network], float)
    places = (places - places.min(0)) / (places.max(0) - places.min(0))
    labels = ((places[:, None] - rng.random((8, 2))) ** 2).sum(-1).argmin(1)
    return build_graph(np.array(network.edges()).T, num_nodes=len(network), labels=labels)


def accuracy(graph: Graph, seed: int, restart: float) -> float:
    sources.PROPAGATIONS["pagerank"] = Propagation(restart=restart)
    config = preset("compact", "").replace(bits=BITS, propagation="pagerank")
    codes = train(graph, config, seed=seed).codes
    return linear_probe(codes, graph.labels, make_split(graph, seed), kind="logreg", bits=BITS).val_accuracy


def main() -> None:
    data, lines = os.environ.get("SPIKEGCL_DATA", ROOT.parent / "shared" / "data"), []
    for name in (*REAL, *SBM, "grid", "geometric"):
        graph = load_dataset(name, data) if name in REAL else generate(name)
        graph = structural_features(dataclasses.replace(graph, features=None, columns=None))
        cells = [spread(accuracy(graph, seed, restart) for seed in range(SEEDS)) for restart in RESTARTS]
        lines.append([name, *(f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" for cell in cells)])
        print(*lines[-1], sep="  ", flush=True)
    heads = ["graph", *(f"restart {restart:g}" for restart in RESTARTS)]
    text = table(f"{BITS} bits, {SEEDS} seeds, validation accuracy in %", heads, lines)
    write_text(ROOT / "results" / "compact" / "structural.md", text)


if __name__ == "__main__":
    main()
