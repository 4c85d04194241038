"""Graphs in parts against graphs in one piece: identical codes, and what training by parts costs in accuracy.

python -m benchmarks.cuts codes [--datasets cora,photo]       -> results/scale/parts.json
python -m benchmarks.cuts accuracy [--datasets photo,cs]      -> results/scale/training.json
python -m benchmarks.cuts halos [--datasets 0,0.2]            -> results/scale/halos.json

The last one is about generated graphs (benchmarks/scale.py), named by the share of their edges that lead anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.published import PAPER, ROOT, data_root
from benchmarks.published import RESULTS as PUBLISHED
from benchmarks.scale import LINES, edge_lines
from spikegcl.config import preset
from spikegcl.datasets import load_dataset
from spikegcl.files import write_text
from spikegcl.graph import build_graph
from spikegcl.parts import metis, partition, stream, take_part
from spikegcl.protocol import run_seed, spread, versions
from spikegcl.session import Session
from spikegcl.training import embed_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = ROOT / "results" / "scale"
COUNTS = (2, 3, 8)
TRAINED, SEEDS, TRAINING_PARTS = ("photo", "computers", "cs", "pubmed"), 5, 2
HALO_NODES, HALO_PARTS, HALO_HOPS = 200_000, 16, 2


def compare_codes(name: str) -> Iterator[list[dict]]:
    """Rows so far: codes of an initialised encoder (its statistics moved by one epoch), in one piece and by parts."""
    graph, rows = load_dataset(name, data_root()), []
    for settings in ("paper", "compact"):
        session = Session(graph, preset(settings, name), 0)
        if session.config.batch_norm:
            session.warm_up(1)
        model, started = session.model, time.perf_counter()
        whole = embed_graph(model, graph)
        seconds = time.perf_counter() - started
        for count in COUNTS:
            started = time.perf_counter()
            codes = embed_graph(model, graph, parts=count)
            passed = time.perf_counter() - started
            hops = model.encoder.hops
            member = partition(graph, count, hops)
            loaded = [len(take_part(graph, np.flatnonzero(member == part), hops).nodes) for part in range(count)]
            row = {
                "graph": name,
                "preset": settings,
                "parts": count,
                "bits": model.bits,
                "sha256": hashlib.sha256(whole.tobytes()).hexdigest(),
                "identical": codes.tobytes() == whole.tobytes(),
                "nodes": graph.num_nodes,
                "nodes_with_halo": sum(loaded),
                "largest_part": max(loaded),
                "seconds_whole": seconds,
                "seconds_parts": passed,
                "versions": versions(),
            }
            rows.append(row)
            yield rows


def compare_accuracy(name: str) -> Iterator[list[dict]]:
    """A row of the seeds so far: accuracy of the paper preset by parts, beside the published one, in one piece."""
    graph, config = load_dataset(name, data_root()), preset("paper", name).replace(parts=TRAINING_PARTS)
    whole = json.loads((PUBLISHED / f"{name}.json").read_text())["test_accuracy"]
    found = []
    for seed in range(SEEDS):
        found.append(run_seed(graph, config, seed, probe="paper").row["test_accuracy"])
        parts = spread(found)
        row = {
            "graph": name,
            "parts": TRAINING_PARTS,
            "seeds": seed + 1,
            "whole": whole,
            "by_parts": parts,
            "within_one_std": abs(whole["mean"] - parts["mean"]) <= whole["std"],
            "versions": versions(),
        }
        yield [row]


def count_halos(name: str) -> Iterator[list[dict]]:
    """The rows so far: how many nodes are loaded for each that is a part's own, by either way of cutting."""
    ends = edge_lines(np.random.default_rng(0), int(LINES * HALO_NODES), HALO_NODES, float(name))
    graph = build_graph(np.stack(ends), num_nodes=HALO_NODES)
    rows = []
    for cut in (metis, stream):
        member = cut(graph, HALO_PARTS)
        parts = [take_part(graph, np.flatnonzero(member == part), HALO_HOPS) for part in range(HALO_PARTS)]
        across = np.repeat(member, graph.degrees) != member[graph.indices]
        row = {
            "graph": name,
            "cut": cut.__name__,
            "nodes": HALO_NODES,
            "parts": HALO_PARTS,
            "hops": HALO_HOPS,
            "edges_cut": float(across.mean()),
            "loaded_per_node": sum(len(part.nodes) for part in parts) / HALO_NODES,
        }
        rows.append(row)
        yield rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["codes", "accuracy", "halos"])
    parser.add_argument("--datasets")
    options = parser.parse_args()
    compare, file, usual = {
        "codes": (compare_codes, "parts.json", tuple(PAPER)),
        "accuracy": (compare_accuracy, "training.json", TRAINED),
        "halos": (count_halos, "halos.json", ("0", "0.02", "0.2")),
    }[options.what]
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / file
    rows = json.loads(path.read_text()) if path.exists() else []
    for name in options.datasets.split(",") if options.datasets else usual:
        others = [row for row in rows if row["graph"] != name]
        for own in compare(name):
            rows = [*others, *own]
            print(json.dumps(own[-1]), flush=True)
            write_text(path, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
