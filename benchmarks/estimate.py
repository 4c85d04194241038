"""Compare `spikegcl estimate` with the training it speaks of: peak memory and seconds, one process per graph.

python -m benchmarks.estimate [--datasets cora,photo,computers,cs,physics] [--epochs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "performance" / "estimate.json"
DATASETS = ("cora", "photo", "computers", "cs", "physics")
COMPARED = ("peak_mb", "seconds_epoch", "seconds_train", "seconds_embed")
LIMIT = 2.0


def data_root() -> Path:
    return Path(os.environ.get("SPIKEGCL_DATA", ROOT.parent / "shared" / "data"))


def call(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "spikegcl", *arguments, "--data-root", str(data_root()), "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def compare(name: str, epochs: int) -> dict[str, Any]:
    """Estimated, measured and their ratio. The machine is probed right before it is used, as a user would."""
    settings = ["--preset", "paper", "--set", f"epochs={epochs}", "--set", "select=last"]
    expected = call("estimate", name, *settings)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        found = call("train", name, *settings, "-o", str(run))
        laps = [json.loads(line)["seconds"] for line in (run / "log.jsonl").read_text().splitlines()]
    measured = {
        "peak_mb": found["peak_mb"],
        "seconds_epoch": laps[-1],  # the first one also loads code
        "seconds_train": found["seconds"]["train"],
        "seconds_embed": found["seconds"]["embed"],
    }
    return {
        "dataset": name,
        "epochs": epochs,
        "estimated": {key: expected[key] for key in COMPARED},
        "measured": measured,
        "ratio": {key: expected[key] / measured[key] for key in COMPARED},
    }


def draw(rows: list[dict[str, Any]]) -> str:
    titles = {"peak_mb": "MB", "seconds_epoch": "s/epoch", "seconds_train": "s train", "seconds_embed": "s embed"}
    lines = [
        "| dataset | " + " | ".join(f"{title} estimated / measured" for title in titles.values()) + " |",
        "|---|" + "---|" * len(titles),
    ]
    for row in rows:
        cells = (
            f"{row['estimated'][key]:.3g} / {row['measured'][key]:.3g} = {row['ratio'][key]:.2f}" for key in titles
        )
        lines.append(f"| {row['dataset']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for name in options.datasets.split(","):
        rows.append(compare(name, options.epochs))
        print(json.dumps(rows[-1]), file=sys.stderr)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"limit": LIMIT, "rows": rows}, indent=1) + "\n")
    print(draw(rows))
    outside = [
        f"{row['dataset']} {key}"
        for row in rows
        for key in ("peak_mb", "seconds_train")
        if not 1 / LIMIT <= row["ratio"][key] <= LIMIT
    ]
    print(f"outside a factor of {LIMIT:g}: {', '.join(outside) or 'none'} (peak memory and training time)")
    raise SystemExit(bool(outside))


if __name__ == "__main__":
    main()
