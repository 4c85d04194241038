"""What to make of the values of words: how `compact` scales them, against other ways.

python -m benchmarks.words [GRAPH ...]      -> results/compact/words.md

Validation accuracy of the `logreg` probe on splits made for tuning: no test node of a citation graph takes part, and of
the other graphs the test part is not looked at. Of the seven graphs only PubMed has words with weights (TF-IDF); those
of Cora, Photo and Computers are there or not, so that two ways remain. Finished graphs are kept in words.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.published import data_root
from benchmarks.run import ROOT, table
from spikegcl.bits import pack
from spikegcl.closed_forms import fit_channels
from spikegcl.components import component_count, fit_components
from spikegcl.datasets import load_dataset, make_split
from spikegcl.files import write_text
from spikegcl.graph import Split
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread, versions
from spikegcl.scaling import choose_scaling
from spikegcl.sources import Sources

if TYPE_CHECKING:
    from spikegcl.graph import Graph

RESULTS = ROOT / "results" / "compact"
GRAPHS = ("pubmed", "cora", "photo", "computers")
BITS, SEEDS = (64, 256, 512), 3
# Name: the power that values are raised to, and the kind of scaling that gets them (`weighted` takes a square root).
WAYS = {
    "value times idf": (1.0, "words"),
    "root of the value times idf": (0.5, "words"),
    "presence times idf": (0.0, "words"),
    "value": (2.0, "weighted"),
    "root of the value": (1.0, "weighted"),
    "presence": (0.0, "weighted"),
}
FOR_PRESENCE = {"presence times idf", "presence"}  # what differs where words are there or not


def tuning_split(graph: Graph, seed: int) -> Split:
    """Nodes to fit on, to choose the strength of the probe by, and to judge by."""
    split, rng = make_split(graph, 100 + seed), np.random.default_rng(seed)
    if graph.split is None:
        return Split(split.train, *np.array_split(split.val, 2))
    nodes = rng.permutation(split.train)
    half = min(2000, len(nodes) // 8)
    return Split(nodes[2 * half :], nodes[:half], nodes[half : 2 * half])


def raised(features: Any, power: float) -> Any:
    """Features whose values are raised to ``power``; what is zero stays zero."""
    if not sp.issparse(features):
        return np.where(features > 0, features**power, 0).astype(np.float32)
    return sp.csr_array((features.data**power, features.indices, features.indptr), features.shape)


def accuracy(graph: Graph, way: str, bits: int, seed: int) -> float:
    power, kind = WAYS[way]
    graph = dataclasses.replace(graph, features=raised(graph.features, power))
    components, scores = fit_components(graph, component_count(bits), scaling=kind, seed=seed)
    directions, shares = fit_channels(Sources((components,), graph.num_features), scores, bits, seed=seed)
    values = scores @ directions
    ones = values > [np.quantile(column, 1 - share) for column, share in zip(values.T, shares, strict=True)]
    found = linear_probe(pack(ones), graph.labels, tuning_split(graph, seed), kind="logreg", bits=bits)
    return (found.val_accuracy + found.test_accuracy) / 2


def measure(name: str) -> dict[str, dict[str, list[float]]]:
    graph = load_dataset(name, data_root())
    ways = WAYS if choose_scaling(graph.features) == "weighted" else FOR_PRESENCE
    return {
        way: {str(bits): [accuracy(graph, way, bits, seed) for seed in range(SEEDS)] for bits in BITS} for way in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    path = RESULTS / "words.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in parser.parse_args().graphs:
        if name not in rows:
            rows[name] = {"commit": versions()["commit"], "ways": measure(name)}
            write_text(path, json.dumps(rows, indent=1) + "\n")
    lines = []
    for name, row in rows.items():
        for way, found in row["ways"].items():
            cells = [spread(found[str(bits)]) for bits in BITS]
            shown = (f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" for cell in cells)
            lines.append([name, way, *shown, row["commit"]])
    header = ["graph", "words are worth", *(f"{bits} bits" for bits in BITS), "commit"]
    text = table(f"Validation accuracy in %, {SEEDS} seeds", header, lines)
    write_text(RESULTS / "words.md", text)
    print(text)


if __name__ == "__main__":
    main()
