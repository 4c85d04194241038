"""New nodes: train on 80 % of the nodes, embed all, probe the other 20 %; beside training on everything.

python -m benchmarks.inductive [--datasets cora,photo,cs] [--presets compact,paper] [--seeds 5] [--redo]

Rows are kept in results/inductive/PRESET-DATASET.json, one a seed; those that are there are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import floors, noise
from spikegcl.codes import Codes
from spikegcl.config import preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.files import write_text
from spikegcl.graph import Split
from spikegcl.inductive import compare_codes
from spikegcl.probes import linear_probe
from spikegcl.protocol import spread, versions
from spikegcl.training import embed_graph, train

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.graph import Graph

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "inductive"
DATASETS = ("cora", "photo", "cs")
PRESETS = ("compact", "paper")
SEEN = 0.8
ALLOWED = 2.0  # points by which training on everything may be better


def data_root() -> Path:
    return Path(os.environ.get("SPIKEGCL_DATA", ROOT.parent / "shared" / "data"))


def parts(graph: Graph, seed: int) -> tuple[NDArray[np.int64], Split]:
    """The seen nodes (ascending), and the probe's split: a stratified tenth of them to train, a tenth to validate.

    All nodes outside are its test part.
    """
    order = np.random.default_rng(noise.derive(seed, "seen nodes")).permutation(graph.num_nodes)
    count = round(SEEN * graph.num_nodes)
    seen, unseen = np.sort(order[:count]), np.sort(order[count:])
    inner = make_split(graph.subgraph(seen), seed, "stratified")
    return seen, Split(seen[inner.train], seen[inner.val], unseen)


def row(graph: Graph, chosen: str, seed: int) -> dict[str, Any]:
    """One seed: both models, both floors, under the same probe on the same nodes."""
    # The last epoch: choosing one by validation accuracy would give the two models different epochs by luck.
    config = preset(chosen, graph.name).replace(select="last")
    seen, split = parts(graph, seed)
    old = graph.subgraph(seen)
    start = time.perf_counter()
    part = train(old, config, seed=seed)
    codes = embed_graph(part.model, graph, known=old.ids)
    whole = train(graph, config, seed=seed)
    bits = part.model.bits
    compared = {
        "inductive": codes,
        "everything": whole.codes,
        "untrained": floors.untrained(graph, config, seed),
        "projection": floors.projection(graph, bits, seed),
    }
    accuracy = {}
    for name, packed in compared.items():
        result = linear_probe(packed, graph.labels, split, kind="logreg", bits=bits, seed=seed)
        accuracy[name] = {"val_accuracy": result.val_accuracy, "test_accuracy": result.test_accuracy}
    before, after = (
        Codes(packed, ids, part.model.steps, part.model.channels)
        for packed, ids in ((part.codes, old.ids), (codes, graph.ids))
    )
    return {
        "dataset": graph.name,
        "preset": chosen,
        "seed": seed,
        "split": split.hash,
        "config": part.config.hash,
        "graph": graph.hash,
        "probe": "logreg",
        "select": "last",
        "bits": bits,
        "seen": len(seen),
        "unseen": graph.num_nodes - len(seen),
        **accuracy,
        "change": asdict(compare_codes(before, after)),
        "seconds": time.perf_counter() - start,
        "versions": versions(),
    }


def path_of(chosen: str, name: str) -> Path:
    return RESULTS / f"{chosen}-{name}.json"


def read(chosen: str, name: str) -> list[dict[str, Any]]:
    path = path_of(chosen, name)
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def draw() -> str:
    lines = [
        "# New nodes: trained on 80 % of the nodes, judged on the other 20 %",
        "",
        "Accuracy in % on the unseen nodes, mean ± standard deviation over seeds. *Inductive*: trained on the subgraph",
        "of the seen nodes, statistics frozen, the whole graph embedded. *Everything*: trained on the whole graph.",
        "Last epoch; probe `logreg`, trained on a stratified tenth of the seen nodes, its strength",
        "chosen on another tenth. Floors on the whole graph, at the same bits. *Flipped*: share of bits of seen nodes",
        f"that changed when the unseen ones joined. Allowed: {ALLOWED:.0f} points below training on everything.",
        "Drawn by `python -m benchmarks.inductive` from the JSON files beside this one.",
        "",
        "| preset | graph | seeds | inductive | everything | difference | untrained | projection | bits | flipped "
        "| met |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for chosen, name in itertools.product(PRESETS, DATASETS):
        rows = read(chosen, name)
        if not rows:
            continue
        cells = {
            kind: spread(100 * one[kind]["test_accuracy"] for one in rows)
            for kind in ("inductive", "everything", "untrained", "projection")
        }
        shown = {kind: f"{cell['mean']:.2f} ± {cell['std']:.2f}" for kind, cell in cells.items()}
        gap = cells["inductive"]["mean"] - cells["everything"]["mean"]
        flipped = 100 * np.mean([one["change"]["share_flipped"] for one in rows])
        lines.append(
            f"| {chosen} | {name} | {len(rows)} | {shown['inductive']} | {shown['everything']} | {gap:+.2f} "
            f"| {shown['untrained']} | {shown['projection']} | {rows[0]['bits']} | {flipped:.2f} % "
            f"| {'yes' if gap >= -ALLOWED else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS), help="which of them, separated by commas")
    parser.add_argument("--presets", default=",".join(PRESETS), help="which of them, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0")
    parser.add_argument("--redo", action="store_true", help="compute rows that are there already again")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for chosen, name in itertools.product(options.presets.split(","), options.datasets.split(",")):
        graph = load_dataset(name, data_root())
        rows = {one["seed"]: one for one in read(chosen, name)}
        for seed in range(options.seeds):
            if options.redo or seed not in rows:
                rows[seed] = row(graph, chosen, seed)
                ordered = [rows[key] for key in sorted(rows)]
                write_text(path_of(chosen, name), json.dumps(ordered, indent=1) + "\n")
                write_text(RESULTS / "README.md", draw())
    write_text(RESULTS / "README.md", draw())
    print(draw())


if __name__ == "__main__":
    main()
