"""Compare `spikegcl estimate` with the training it speaks of: peak memory and seconds, one process per graph.

python -m benchmarks.estimate [--datasets cora,photo,computers,cs,physics] [--presets compact,paper] [--epochs 2]
"""

from __future__ import annotations

import argparse
import itertools
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
LIMIT = 2.0


def data_root() -> Path:
    return Path(os.environ.get("SPIKEGCL_DATA", ROOT.parent / "shared" / "data"))


def call(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "spikegcl", *arguments, "--data-root", str(data_root()), "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def compare(name: str, preset: str, epochs: int) -> dict[str, Any]:
    """Estimated, measured and their ratio. The machine is probed right before it is used, as a user would.

    ``epochs`` are those of the preset `paper`; `compact` has none.
    """
    settings = ["--preset", preset]
    if preset == "paper":
        settings += ["--set", f"epochs={epochs}", "--set", "select=last"]
    expected = call("estimate", name, *settings)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        found = call("train", name, *settings, "-o", str(run))
        laps = [json.loads(line)["seconds"] for line in (run / "log.jsonl").read_text().splitlines()]
    measured = {
        "peak_mb": found["peak_mb"],
        **({"seconds_epoch": laps[-1]} if laps else {}),  # the first one also loads code
        "seconds_train": found["seconds"]["train"],
        "seconds_embed": found["seconds"]["embed"],
    }
    return {
        "dataset": name,
        "preset": preset,
        "epochs": len(laps),
        "estimated": {key: expected[key] for key in measured},
        "measured": measured,
        "ratio": {key: expected[key] / measured[key] for key in measured},
    }


def draw(rows: list[dict[str, Any]]) -> str:
    titles = {"peak_mb": "MB", "seconds_epoch": "s/epoch", "seconds_train": "s train", "seconds_embed": "s embed"}
    lines = [
        "| preset | dataset | " + " | ".join(f"{title} estimated / measured" for title in titles.values()) + " |",
        "|---|---|" + "---|" * len(titles),
    ]
    for row in rows:
        cells = (
            f"{row['estimated'][key]:.3g} / {row['measured'][key]:.3g} = {row['ratio'][key]:.2f}"
            if key in row["ratio"]
            else ""
            for key in titles
        )
        lines.append(f"| {row['preset']} | {row['dataset']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--presets", default="compact,paper")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for preset, name in itertools.product(options.presets.split(","), options.datasets.split(",")):
        rows.append(compare(name, preset, options.epochs))
        print(json.dumps(rows[-1]), file=sys.stderr)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"limit": LIMIT, "rows": rows}, indent=1) + "\n")
    print(draw(rows))
    outside = [
        f"{row['preset']} {row['dataset']} {key}"
        for row in rows
        for key in ("peak_mb", "seconds_train")
        if not 1 / LIMIT <= row["ratio"][key] <= LIMIT
    ]
    print(f"outside a factor of {LIMIT:g}: {', '.join(outside) or 'none'} (peak memory and training time)")
    raise SystemExit(bool(outside))


if __name__ == "__main__":
    main()
