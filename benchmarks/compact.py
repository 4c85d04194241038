"""Rows of the compact preset: accuracy at several numbers of bits, beside the floors; finished rows are not repeated.

python -m benchmarks.compact [--datasets cora,photo] [--bits 64,256,512] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json

from benchmarks.published import data_root
from benchmarks.run import GRAPHS, ROOT, table
from spikegcl.config import preset
from spikegcl.datasets import load_dataset
from spikegcl.protocol import run_seed, spread

RESULTS = ROOT / "results" / "compact"
ROWS = RESULTS / "rows.jsonl"


def read_rows() -> list[dict]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def draw(rows: list[dict]) -> str:
    shown = []
    for name in GRAPHS:
        for bits in sorted({row["bits"] for row in rows if row["dataset"] == name}):
            own = [row for row in rows if (row["dataset"], row["bits"]) == (name, bits)]
            accuracy = spread(row["test_accuracy"] for row in own)
            floor = spread(row["floors"]["projection"]["test_accuracy"] for row in own)
            seconds = sum(row["seconds"]["train"] + row["seconds"]["embed"] for row in own) / len(own)
            cells = [f"{100 * value['mean']:.2f} ± {100 * value['std']:.2f}" for value in (accuracy, floor)]
            shown.append([name, str(bits), str(len(own)), *cells, f"{seconds:.1f}"])
    header = ["graph", "bits", "seeds", "compact", "projection", "seconds"]
    note = (
        "Test accuracy in %, probe `logreg`, mean ± standard deviation over seeds with everything redrawn (split where "
        "it is random, components, rotations). Drawn by `python -m benchmarks.compact` from rows.jsonl.\n"
    )
    return table("Preset compact", header, shown) + "\n" + note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default=",".join(GRAPHS))
    parser.add_argument("--bits", default="64,256,512")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in options.datasets.split(","):
        graph = load_dataset(name, data_root())
        for bits in map(int, options.bits.split(",")):
            for seed in range(options.seeds):
                if any((row["dataset"], row["bits"], row["seed"]) == (name, bits, seed) for row in read_rows()):
                    continue
                row = run_seed(graph, preset("compact", name).replace(bits=bits), seed).row
                with ROWS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                (RESULTS / "README.md").write_text(draw(read_rows()))
    print(draw(read_rows()))


if __name__ == "__main__":
    main()
