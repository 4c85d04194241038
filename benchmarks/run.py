"""All speed and memory benchmarks, as ratios within one run.

    python -m benchmarks.run [--quick] [--only epochs,steps,growth,bandwidth,whole,codes,binary,bane]

Every measurement runs in a process of its own (benchmarks/measure.py), sides one after the other on the same machine.
Rows go to results/performance/*.json, from which the tables and plots beside them are drawn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "performance"
GRAPHS = ("cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics")
SIDES = ("ours", "sparse", "edge_index")
# One process differs from the next by up to a third, so sides take turns in several where an epoch is short.
ROUNDS = {"cora": 3, "citeseer": 3, "pubmed": 3, "photo": 3}
NAMES = {
    "ours": "ours",
    "alone": "ours, without start, floors and report",
    "sparse": "PyG, sparse matrix",
    "edge_index": "PyG, edge_index",
}


def child(side: str, graph: str, repeats: int, *settings: str) -> dict:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.measure", side, graph, "--repeats", str(repeats)]
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


def save(name: str, rows: object) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"machine": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))}
    (RESULTS / f"{name}.json").write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    lines = [f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def epochs(quick: bool) -> str:
    """Training epoch, embedding and memory against the comparator, on the real graphs.

    Rows already in results/performance/epochs.json are kept: delete the file to measure everything again.
    """
    path = RESULTS / "epochs.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() and not quick else []
    for graph in ("cora", "photo") if quick else GRAPHS:
        for turn, side in itertools.product(range(1 if quick else ROUNDS.get(graph, 1)), SIDES):
            key = {"graph": graph, "side": side, "round": turn}
            if not any(key.items() <= row.items() for row in rows):
                rows.append(key | child(side, graph, 7 if side == "ours" else 3))
                save("epochs", rows)
    return draw_epochs(rows)


def medians(rows: Sequence[dict], graph: str, side: str) -> dict[str, float]:
    """One row of the several of a graph and side: medians of the seconds, means of the peaks."""
    own = [row for row in rows if (row["graph"], row["side"]) == (graph, side)]
    seconds = {
        what: statistics.median(value for row in own for value in row[what])
        for what in ("epoch_seconds", "embed_seconds")
    }
    return seconds | {what: statistics.fmean(row[what] for row in own) for what in ("peak_mb", "libraries_mb")}


def draw_epochs(rows: list[dict]) -> str:
    """The table of all graphs measured so far; a side that was not run on a graph shows a dash."""
    others, shown, ratios = SIDES[1:], [], {}
    for graph in GRAPHS:
        sides = {side: medians(rows, graph, side) for side in {row["side"] for row in rows if row["graph"] == graph}}
        if "ours" not in sides:
            continue
        cells = [graph]
        for what in ("epoch_seconds", "embed_seconds"):
            ours = sides["ours"][what]
            cells.append(f"{1000 * ours:.0f} ms")
            for side in others:
                if side in sides:
                    ratios.setdefault((what, side), []).append(sides[side][what] / ours)
                cells.append(f"{ratios[what, side][-1]:.1f}x" if side in sides else "-")
        above = {side: row["peak_mb"] - row["libraries_mb"] for side, row in sides.items()}
        cells.append(f"{sides['ours']['peak_mb']:.0f} ({above['ours']:.0f})")
        cells += [f"{above[side] / above['ours']:.1f}x" if side in sides else "-" for side in others]
        shown.append(cells)
    means = {key: f"{geometric(values):.1f}x" for key, values in ratios.items()}
    last = [["", *(means.get((what, side), "-") for side in others)] for what in ("epoch_seconds", "embed_seconds")]
    shown.append(["geometric mean", *last[0], *last[1], "", "", ""])
    against = [f"vs {NAMES[side]}" for side in others]
    header = ["graph", "epoch", *against, "embed", *against, "peak MB (above libraries)", *against]
    return table("Training epoch, embedding, memory (paper presets)", header, shown)


def steps(quick: bool) -> str:
    """Process peak against the number of steps at a fixed number of channels per step."""
    nodes = 5_000 if quick else 20_000
    rows = [
        child("ours", f"sbm:nodes={nodes},num_features=512", 1, f"steps={t}", "channels=64") for t in (8, 16, 32, 64)
    ]
    save("steps", rows)
    shown = [[str(row["steps"]), f"{row['peak_mb']:.0f}", f"{nodes * row['steps'] * 8 / 2**20:.1f}"] for row in rows]
    ratio = max(row["peak_mb"] for row in rows) / min(row["peak_mb"] for row in rows)
    text = table(f"Memory against steps (sbm, {nodes} nodes, 64 channels a step)", ["T", "peak MB", "codes MB"], shown)
    return text + f"\nLargest to smallest peak: {ratio:.2f}\n"


def growth(quick: bool) -> str:
    """Seconds per epoch and memory on growing graphs, and on the real ogbn-arxiv topology."""
    sizes = (10_000, 30_000) if quick else (10_000, 100_000, 1_000_000)
    rows = [child("ours", f"sbm:nodes={n},degree=15,num_features=128", 2, "steps=8", "channels=64") for n in sizes]
    text = ""
    if not quick:
        rows.append(child("ours", "arxiv-topology", 2))
    save("growth", rows)
    shown = [
        [row["graph"].split(",")[0], f"{row['nodes']:,}", f"{row['edges'] // 2:,}", str(row["steps"]),
         f"{statistics.median(row['epoch_seconds']):.2f}", f"{statistics.median(row['embed_seconds']):.2f}",
         f"{row['peak_mb'] / 1024:.2f}"]
        for row in rows
    ]  # fmt: skip
    text += table("Growth", ["graph", "nodes", "edges", "T", "epoch s", "embed s", "peak GB"], shown)
    first, last = rows[0], rows[len(sizes) - 1]
    seconds = [statistics.median(row["epoch_seconds"]) for row in (first, last)]
    exponent = math.log(seconds[1] / seconds[0]) / math.log(last["nodes"] / first["nodes"])
    return text + f"\nSeconds per epoch grow as N^{exponent:.2f} from {first['nodes']:,} to {last['nodes']:,} nodes.\n"


def bandwidth(quick: bool) -> str:
    """What the sparse product moves per second against a plain copy, and where the rest of an epoch goes."""
    from benchmarks import parts

    rows = [parts.measure(graph) for graph in (("photo",) if quick else ("computers", "cs", "arxiv-topology"))]
    save("bandwidth", rows)
    return parts.draw(rows)


def whole(quick: bool) -> str:
    """The command a user types, probes included, against the comparator doing the same."""
    name, count = ("photo", 3) if quick else ("computers", 20)
    from benchmarks.published import data_root
    from spikegcl.protocol import versions

    rows = []
    settings = ["--preset", "paper", "--probe", "paper", "--set", f"epochs={count}", "--force", "-o", "runs/bench"]
    command = [sys.executable, "-m", "spikegcl", "train", name, "--data-root", str(data_root()), *settings, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows.append({"side": "ours", "graph": name, "seconds": time.perf_counter() - started})
    rows.append({"side": "alone", "graph": name, "seconds": sum(json.loads(done.stdout)["seconds"].values())})
    few = max(1, count // 5)  # the comparator is linear in epochs: a fifth of them, multiplied, to save minutes
    for side in SIDES[1:]:
        script = (
            "import torch, sys; from benchmarks.measure import graph_and_config;"
            "from benchmarks.paper_loop import train_and_probe; from spikegcl.datasets import make_split;"
            f"g, c = graph_and_config({name!r}, ['epochs={few}']);"
            f"print(train_and_probe(g, c, make_split(g, 0), {side!r})[1])"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        rows.append({"side": side, "graph": name, "seconds": float(done.stdout) * count / few, "epochs_run": few})
    save("whole", [row | {"versions": versions()} for row in rows])
    shown = [[NAMES[r["side"]], f"{r['seconds']:.1f}", f"{r['seconds'] / rows[0]['seconds']:.1f}x"] for r in rows]
    note = (
        f"Ours is the whole command: start of the process, {count} epochs, floors, run folder, report; ratios are to "
        f"it. The comparator has no floors and no report and is timed inside the process over {few} epochs, times "
        f"{count // few}.\n"
    )
    return table(f"{name}, {count} epochs, probe after each", ["side", "seconds", "ratio"], shown) + "\n" + note


def codes(quick: bool) -> str:
    """Search, opening and linear maps on a million codes."""
    command = [sys.executable, "-m", "benchmarks.codes", *(["--quick"] if quick else [])]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def binary(quick: bool) -> str:
    """Bi-GCN's layers on packed bits against float32."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.binary", *(["--quick"] if quick else [])]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def bane(quick: bool) -> str:
    """BANE on the topology of ogbn-arxiv; a few minutes, so not a quick one."""
    if quick:
        return ""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bane"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


BENCHMARKS = {
    "epochs": epochs,
    "steps": steps,
    "growth": growth,
    "bandwidth": bandwidth,
    "whole": whole,
    "codes": codes,
    "binary": binary,
    "bane": bane,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small graphs, a few minutes; nothing is written")
    parser.add_argument("--only", default=",".join(BENCHMARKS))
    options = parser.parse_args()
    if options.quick:
        globals()["save"] = lambda name, rows: None
    for name in options.only.split(","):
        text = BENCHMARKS[name](options.quick)
        print(text, flush=True)
        if not options.quick:
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"{name}.md").write_text(text)
    if not options.quick:
        from benchmarks import plots

        plots.main()


if __name__ == "__main__":
    main()
