"""Is a missed target a bug of ours? The comparator's accuracy under the same splits, selection and probe.

python -m benchmarks.control [--datasets cora,citeseer] [--seeds 10]      -> results/published/control.json

The comparator (benchmarks/paper_loop.py) shares no code of model, training or random numbers with the package. Both
sides keep the epoch with the best validation accuracy of one start of the paper's probe, and are judged by the mean of
five starts. Finished seeds are not run again.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from typing import TYPE_CHECKING

import torch

from benchmarks.paper_loop import PaperLoop
from benchmarks.published import RESULTS, data_root
from spikegcl.bits import pack
from spikegcl.config import preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.files import write_text
from spikegcl.probes import REPEATS, linear_probe
from spikegcl.protocol import run_seed, versions

if TYPE_CHECKING:
    from spikegcl.config import Config
    from spikegcl.graph import Graph

PATH = RESULTS / "control.json"


def ours(graph: Graph, config: Config, seed: int) -> float:
    accuracy: float = run_seed(graph, config, seed, probe="paper").row["test_accuracy"]
    return accuracy


def comparator(graph: Graph, config: Config, seed: int) -> float:
    torch.manual_seed(seed)
    split, model = make_split(graph, seed), PaperLoop(config, graph, "sparse")
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    best, accuracy = -1.0, 0.0
    for _ in range(config.epochs):
        model.train_epoch(optimiser)
        spikes = model.embed().numpy() > 0
        probe = functools.partial(
            linear_probe, pack(spikes), graph.labels, split, kind="paper", bits=spikes.shape[1], seed=seed
        )
        if (validation := probe().val_accuracy) > best:
            best, accuracy = validation, probe(repeats=REPEATS).test_accuracy
    return accuracy


def compare(rows: list[dict]) -> str:
    """Both means per graph, and their difference in standard errors."""
    lines = ["| graph | seeds | ours | comparator | difference | standard error |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["graph"] for row in rows):
        sides = {
            side: {
                row["seed"]: 100 * row["test_accuracy"] for row in rows if (row["graph"], row["side"]) == (name, side)
            }
            for side in ("ours", "comparator")
        }
        seeds = sorted(sides["ours"].keys() & sides["comparator"].keys())
        if len(seeds) < 2:
            continue
        values = [[sides[side][seed] for seed in seeds] for side in sides]
        shown = [f"{statistics.fmean(side):.2f} ± {statistics.stdev(side):.2f}" for side in values]
        gaps = [left - right for left, right in zip(*values, strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        lines.append(f"| {name} | {len(seeds)} | {' | '.join(shown)} | {statistics.fmean(gaps):+.2f} | {error:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora,citeseer,photo,pubmed")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    rows = json.loads(PATH.read_text()) if PATH.exists() else []
    for name in options.datasets.split(","):
        graph, config = load_dataset(name, data_root()), preset("paper", name)
        for seed in range(options.seeds):
            for side in (ours, comparator):
                key = {"graph": name, "seed": seed, "side": side.__name__}
                if not any(key.items() <= row.items() for row in rows):
                    made = {"config": config.hash, "commit": versions()["commit"]}
                    rows.append(key | made | {"test_accuracy": side(graph, config, seed)})
                    write_text(PATH, json.dumps(rows, indent=1) + "\n")
                    print(json.dumps(rows[-1]), flush=True)
    print(compare(rows))


if __name__ == "__main__":
    main()
