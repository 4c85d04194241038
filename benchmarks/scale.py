"""Seconds and memory at sizes beyond the benchmarks: a generated graph, prepared from Parquet under a memory limit.

    python -m benchmarks.scale prepare --nodes 1e6 --memory 1GB

A graph has 7.5 edge lines per node, to nodes nearby or anywhere, and 64 features. It is written in pieces, so that
generating it takes little memory whatever its size. Preparation runs as the command in a process of its own, whose
memory is watched from outside: ``peak_mb`` is the largest resident size, ``peak_anonymous_mb`` that without pages of
files. Rows are added to results/scale/prepare.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale"
FEATURES, LINES_PER_NODE, AT_ONCE = 64, 7.5, 1 << 17


def generate(folder: Path, nodes: int, seed: int = 0) -> tuple[Path, Path]:
    """edges.parquet and features.parquet of a graph with ``nodes`` nodes, in pieces of ``AT_ONCE`` rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    edges, features = folder / "edges.parquet", folder / "features.parquet"
    ends = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    with parquet.ParquetWriter(edges, ends) as writer:
        lines = int(LINES_PER_NODE * nodes)
        for start in range(0, lines, AT_ONCE):
            source = rng.integers(0, nodes, min(AT_ONCE, lines - start))
            near = (source + rng.integers(1, 100, len(source))) % nodes
            target = np.where(rng.random(len(source)) < 0.8, near, rng.integers(0, nodes, len(source)))
            writer.write_table(pa.table([source, target], schema=ends))
    columns = pa.schema([("id", pa.int64()), *((f"f{number}", pa.float32()) for number in range(FEATURES))])
    with parquet.ParquetWriter(features, columns, use_dictionary=False, compression=None) as writer:
        for start in range(0, nodes, AT_ONCE):
            ids = np.arange(start, min(nodes, start + AT_ONCE))
            values = rng.standard_normal((FEATURES, len(ids)), dtype=np.float32)
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
        time.sleep(0.02)
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    seconds = time.perf_counter() - begun
    memory = {"peak_mb": peak / 1e6, "peak_anonymous_mb": anonymous / 1e6}
    return {"output": output, "seconds": seconds, "processor_seconds": used, **memory}


def measure_prepare(nodes: int, memory: str, folder: Path, keep: Path | None) -> dict[str, Any]:
    files = folder / f"files-{nodes}"
    graph = keep or folder / f"graph-{nodes}"
    try:
        edges, features = generate(files, nodes)
        size = edges.stat().st_size + features.stat().st_size
        command = [sys.executable, "-m", "spikegcl", "prepare", edges, "--features", features]
        command += ["--memory", memory, "-o", graph, "--force", "--json"]
        seen = watch(list(map(str, command)))
        document = json.loads(seen.pop("output"))
        return {
            "nodes": nodes,
            "edge_lines": int(LINES_PER_NODE * nodes),
            "edges": document["edges"],
            "features": FEATURES,
            "memory": memory,
            "input_mb": size / 1e6,
            "prepared_mb": sum(file["bytes"] for file in document["files"].values()) / 1e6,
            **seen,
            "own_peak_mb": document["peak_mb"],
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "versions": {"python": platform.python_version(), "duckdb": duckdb.__version__, "pyarrow": pa.__version__},
        }
    finally:
        shutil.rmtree(files, ignore_errors=True)
        if keep is None:
            shutil.rmtree(graph, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["prepare"])
    parser.add_argument("--nodes", type=float, default=1e5)
    parser.add_argument("--memory", default="1GB", help="limit given to the preparation")
    parser.add_argument("--folder", type=Path, default=Path("scale"), help="where files are generated, then removed")
    parser.add_argument("--keep", type=Path, help="keep the prepared graph under this name")
    options = parser.parse_args()
    row = measure_prepare(int(options.nodes), options.memory, options.folder, options.keep)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "prepare.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
