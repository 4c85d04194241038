"""Seconds and memory at sizes beyond the benchmarks: a generated graph, prepared from Parquet, trained on and embedded.

    python -m benchmarks.scale prepare --nodes 1e6 --memory 1GB
    python -m benchmarks.scale train --nodes 1e6 --far 0 --parts 4 --preset contrastive --set epochs=1

A graph has 7.5 edges per node, to nodes nearby or (a share ``--far``) anywhere, and 64 features. It is written in
pieces, so that generating it takes little memory whatever its size. Every stage runs as the command in a process of its
own, whose memory is watched from outside: ``peak_mb`` is the largest resident size, ``peak_anonymous_mb`` that without
pages of files. Rows are added to results/scale/prepare.jsonl and results/scale/train.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

from spikegcl.protocol import versions

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale"
FEATURES, AT_ONCE = 64, 1 << 17
LINES = 7.8  # edge lines per node; without repeats 7.5 edges


def edge_lines(rng: np.random.Generator, count: int, nodes: int, far: float) -> tuple[Any, Any]:
    """Ends of ``count`` edges between ``nodes`` nodes: to one of the next 99, or for a share ``far`` to any."""
    source = rng.integers(0, nodes, count)
    near = (source + rng.integers(1, 100, count)) % nodes
    return source, np.where(rng.random(count) >= far, near, rng.integers(0, nodes, count))


def generate(folder: Path, nodes: int, far: float, lines: float, seed: int = 0) -> tuple[Path, Path]:
    """edges.parquet and features.parquet of a graph with ``nodes`` nodes and ``lines`` edge lines for each.

    In pieces of ``AT_ONCE`` rows. Features are a slow wave along the nodes' numbers, so that neighbours are alike, and
    noise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    edges, features = folder / "edges.parquet", folder / "features.parquet"
    ends = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    with parquet.ParquetWriter(edges, ends) as writer:
        total = int(lines * nodes)
        for start in range(0, total, AT_ONCE):
            pairs = edge_lines(rng, min(AT_ONCE, total - start), nodes, far)
            writer.write_table(pa.table(pairs, schema=ends))
    columns = pa.schema([("id", pa.int64()), *((f"f{number}", pa.float32()) for number in range(FEATURES))])
    with parquet.ParquetWriter(features, columns, use_dictionary=False, compression=None) as writer:
        for start in range(0, nodes, AT_ONCE):
            ids = np.arange(start, min(nodes, start + AT_ONCE))
            values = rng.standard_normal((FEATURES, len(ids)), dtype=np.float32)
            values += np.sin(ids / 1000 + np.arange(FEATURES)[:, None]).astype(np.float32)
            writer.write_table(pa.table([ids, *values], schema=columns))
    return edges, features


def watch(command: list[str]) -> dict[str, Any]:
    """Run a command; its output, seconds by the clock and of processors, and the most memory it had, in megabytes.

    Memory and processor time are those of the process and its children together.
    """
    begun, peak, anonymous, used = time.perf_counter(), 0, 0, 0.0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            processes = [watched, *watched.children(recursive=True)]
            used = max(used, sum(sum(one.cpu_times()[:2]) for one in processes))
            sizes = [one.memory_info() for one in processes]
            peak = max(peak, sum(size.rss for size in sizes))
            anonymous = max(anonymous, sum(size.rss - size.shared for size in sizes))
        except psutil.Error:
            pass  # it ended while we looked
        time.sleep(0.1)
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    seconds = time.perf_counter() - begun
    memory = {"peak_mb": peak / 1e6, "peak_anonymous_mb": anonymous / 1e6}
    return {"output": output, "seconds": seconds, "processor_seconds": used, **memory}


def measure_prepare(nodes: int, far: float, lines: float, memory: str, folder: Path, graph: Path) -> dict[str, Any]:
    files = folder / f"files-{nodes}"
    try:
        edges, features = generate(files, nodes, far, lines)
        size = edges.stat().st_size + features.stat().st_size
        seen = run("prepare", edges, "--features", features, "--memory", memory, "-o", graph, "--force")
    finally:
        shutil.rmtree(files, ignore_errors=True)
    document = seen.pop("output")
    return {
        "nodes": nodes,
        "edge_lines": int(lines * nodes),
        "edges": document["edges"],
        "features": FEATURES,
        "far": far,
        "memory": memory,
        "input_mb": size / 1e6,
        "prepared_mb": sum(file["bytes"] for file in document["files"].values()) / 1e6,
        **seen,
        "own_peak_mb": document["peak_mb"],
        **machine(),
    }


def measure_train(graph: Path, far: float, parts: int, given: list[str], folder: Path) -> dict[str, Any]:
    """Train on a prepared graph, then embed it by the run's model; each by ``parts`` parts."""
    made, codes = folder / "run", folder / "codes.arrow"
    try:
        trained = run("train", graph, "--parts", parts, *given, "--no-report", "--force", "-o", made)
        metrics = trained.pop("output")
        row = metrics["rows"][0]
        size = sum(file.stat().st_size for file in made.rglob("*"))
        embedded = run("embed", made, graph, "--parts", parts, "-o", codes)
        document = embedded.pop("output")
    finally:
        shutil.rmtree(made, ignore_errors=True)
        codes.unlink(missing_ok=True)
    manifest = json.loads((graph / "manifest.json").read_text())
    return {
        **{name: manifest[name] for name in ("nodes", "edges", "features")},
        "far": far,
        "preset": metrics["preset"],
        "given": given,
        "parts": parts,
        "epochs": row["epochs"],
        "bits": row["bits"],
        "firing_rate": row["firing_rate"],
        "dead_bits": row["dead_bits"],
        "run_mb": size / 1e6,
        "train": {**trained, "laps": row["seconds"]},
        "embed": {**embedded, "bits_flipped": document["change"]["bits_flipped"]},
        **machine(),
    }


def run(*arguments: object) -> dict[str, Any]:
    """Watch a command of spikegcl; its output is read as JSON."""
    seen = watch([sys.executable, "-m", "spikegcl", *map(str, arguments), "--json"])
    return {**seen, "output": json.loads(seen["output"])}


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "load": os.getloadavg()[0],
        "versions": {**versions(), "duckdb": duckdb.__version__, "pyarrow": pa.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["prepare", "train"])
    parser.add_argument("--nodes", type=float, default=1e5)
    parser.add_argument("--far", type=float, default=0.2, help="share of the edges that lead anywhere")
    parser.add_argument("--lines", type=float, default=LINES, help="edge lines per node")
    parser.add_argument("--memory", default="1GB", help="limit given to the preparation")
    parser.add_argument("--folder", type=Path, default=Path("scale"), help="where files are generated, then removed")
    parser.add_argument("--graph", type=Path, help="train: a prepared graph; prepare: keep it under this name")
    parser.add_argument("--parts", type=int, default=1)
    options, given = parser.parse_known_args()
    graph, rows = options.graph or options.folder / "graph", list[tuple[str, dict[str, Any]]]()
    if not graph.exists():
        prepared = measure_prepare(
            int(options.nodes), options.far, options.lines, options.memory, options.folder, graph
        )
        rows.append(("prepare.jsonl", prepared))
    if options.stage == "train":
        rows.append(("train.jsonl", measure_train(graph, options.far, options.parts, given, options.folder)))
    if options.graph is None:
        shutil.rmtree(graph)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, row in rows:
        with (RESULTS / name).open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
