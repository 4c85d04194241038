"""Which batch-norm statistics should codes use? Running averages against the exact ones of the clean graph.

python -m benchmarks.statistics [--datasets cora,citeseer,photo] [--seeds 5]
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.published import data_root
from benchmarks.run import ROOT, table
from spikegcl.config import preset
from spikegcl.datasets import load_dataset, make_split
from spikegcl.objectives import Margin
from spikegcl.probes import REPEATS, linear_probe
from spikegcl.protocol import spread
from spikegcl.session import Session

RESULTS = ROOT / "results" / "statistics"


@torch.no_grad()
def use_exact_statistics(session: Session) -> None:
    """Replace the running averages by the statistics of the clean graph without dropout, pooled over steps."""
    encoder, view = session.model.encoder, session.whole.clean
    for norm in (encoder.input_norm, *encoder.norms):
        norm.observe = lambda mean, var, norm=norm: norm.seen.append((mean.clone(), var.clone()))
        norm.seen = []
    for first, steps in session.model.chunks(view.operator.num_nodes):
        encoder.currents(view, first, steps)
    for norm in (encoder.input_norm, *encoder.norms):
        means, variances = (torch.cat(parts) for parts in zip(*norm.seen, strict=True))
        norm.mean.copy_(means.mean(0))
        norm.var.copy_((variances + (means - means.mean(0)) ** 2).mean(0))
        del norm.observe, norm.seen


def measure(name: str, seed: int) -> dict:
    graph, config = load_dataset(name, data_root()), preset("paper", name)
    split, session = make_split(graph, seed), Session(graph, config, seed)
    objective = Margin(session)
    for epoch in range(1, config.epochs + 1):
        objective.epoch(epoch)
    row = {"dataset": name, "seed": seed, "split": split.hash, "config": config.hash}
    for kind in ("running", "exact"):
        if kind == "exact":
            use_exact_statistics(session)
        probe = linear_probe(session.embed(), graph.labels, split, bits=session.model.bits, seed=seed, repeats=REPEATS)
        row[kind] = probe.test_accuracy
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default="cora,citeseer,photo")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    path = RESULTS / "rows.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    done = {(row["dataset"], row["seed"]) for row in rows}
    asked = [(name, seed) for name in options.datasets.split(",") for seed in range(options.seeds)]
    rows += [measure(name, seed) for name, seed in asked if (name, seed) not in done]
    shown = []
    for name in dict.fromkeys(row["dataset"] for row in rows):
        cells = [spread(row[kind] for row in rows if row["dataset"] == name) for kind in ("running", "exact")]
        count = sum(row["dataset"] == name for row in rows)
        shown.append([name, str(count), *(f"{100 * cell['mean']:.2f} ± {100 * cell['std']:.2f}" for cell in cells)])
    title = "Test accuracy in %, last epoch of the paper preset, probe `paper`"
    text = table(title, ["dataset", "seeds", "running averages", "exact statistics of the clean graph"], shown)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
