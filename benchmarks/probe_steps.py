"""An embedding under the paper's probe with more or fewer steps: what a printed value may owe to when it stopped.

python -m benchmarks.probe_steps      -> results/choices/probe-steps.md

Preset `cpu`, seed 0. The paper's probe takes 100 steps of AdamW on raw values and keeps the best on validation nodes;
`logreg` goes to the optimum, at the best of several strengths. Embeddings with small values need many steps.
"""

from __future__ import annotations

import numba
import torch

from benchmarks.choices import RESULTS
from benchmarks.published import data_root
from benchmarks.run import table
from spikegcl import probes
from spikegcl.baselines import find_method
from spikegcl.datasets import load_dataset, make_split
from spikegcl.experiments import paper
from spikegcl.files import write_text
from spikegcl.protocol import versions

STEPS = (30, 100, 300, 1000, 3000)
CELLS = (  # outside 1.5 points of the printed value
    ("ggd", "pubmed"),
    ("dgi", "computers"),
    ("ggd", "citeseer"),
    ("cca-ssg", "cora"),
    ("cca-ssg", "citeseer"),
)


def measure(name: str, dataset: str) -> list[str]:
    graph, method = load_dataset(dataset, data_root()), find_method(name)
    settings, split = method.settings_for("cpu", dataset), make_split(graph, 0)
    embedding = method.fit(graph, settings, seed=0, split=split, on_epoch=None, device="cpu").embedding
    found = []
    for steps in STEPS:
        probes.STEPS = steps
        found.append(probes.linear_probe(embedding, graph.labels, split, kind="paper", seed=0).test_accuracy)
    found.append(probes.linear_probe(embedding, graph.labels, split, kind="logreg").test_accuracy)
    return [name, dataset, paper.accuracy(name, dataset) or "-", *(f"{100 * accuracy:.1f}" for accuracy in found)]


def main() -> None:
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    lines = [[*measure(*cell), versions()["commit"]] for cell in CELLS]
    header = ["method", "graph", "printed", *(f"{steps} steps" for steps in STEPS), "logreg", "commit"]
    text = table("Test accuracy (%) under the paper's probe, by its steps", header, lines)
    write_text(RESULTS / "probe-steps.md", text)
    print(text)


if __name__ == "__main__":
    main()
