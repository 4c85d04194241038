"""Search of a million codes of 512 bits in four files, against one index over all of them.

    python -m benchmarks.shards [--quick]

Both sides run in one thread and are given in CPU time (benchmarks.codes). ``--quick`` takes 100 000 codes and writes
nothing; else the numbers go to results/scale/shards.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.codes import BITS, best, machine
from benchmarks.run import ROOT, table
from spikegcl.codes import Codes
from spikegcl.search import Index
from spikegcl.shards import ShardedIndex, open_shards, write_manifest

SHARDS, K, BATCHES = 4, 10, (1, 64, 256)
OUTPUT = ROOT / "results/scale/shards.json"


def write_shards(codes: Codes, folder: Path) -> Path:
    """Cut the codes into equal parts, one file each, and join them by a manifest."""
    files = []
    for number, rows in enumerate(np.array_split(np.arange(len(codes)), SHARDS)):
        files.append(folder / f"codes-{number}.arrow")
        codes[rows[0] : rows[-1] + 1].save(files[-1])
    write_manifest(folder / "codes.json", files)
    return folder / "codes.json"


def measure_batch(whole: Index, parts: ShardedIndex, query: Codes, repeats: int) -> dict[str, Any]:
    one_ms, one = best(lambda: whole.search(query, K), repeats)
    parts_ms, shards = best(lambda: parts.search(query, K), repeats)
    return {
        "batch": len(query),
        "one_index_queries_per_second": 1000 * len(query) / one_ms,
        "shards_queries_per_second": 1000 * len(query) / parts_ms,
        "same_neighbours": bool(
            np.array_equal(one.ids, shards.ids) and np.array_equal(one.distances, shards.distances)
        ),
    }


def draw(result: dict[str, Any]) -> str:
    lines = [
        [str(row["batch"]), f"{row['one_index_queries_per_second']:.1f}", f"{row['shards_queries_per_second']:.1f}",
         str(row["same_neighbours"]).lower()]
        for row in result["batches"]
    ]  # fmt: skip
    title = f"{result['codes']:,} codes of {BITS} bits, k = {K}: queries per second of CPU time, one thread"
    opening = ", ".join(f"{name} {ms:.1f} ms" for name, ms in result["open_ms"].items())
    return (
        table(title, ["batch", "one index", f"{SHARDS} shards", "same"], lines) + f"\nopening the shards: {opening}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 000 codes; nothing is written")
    quick = parser.parse_args().quick
    faiss.omp_set_num_threads(1)
    count = 100_000 if quick else 1_000_000
    rng = np.random.default_rng(0)
    codes = Codes(rng.integers(0, 256, (count, BITS // 8), dtype=np.uint8), np.arange(count), BITS // 8, 8)
    queries = Codes(
        rng.integers(0, 256, (max(BATCHES), BITS // 8), dtype=np.uint8), np.arange(max(BATCHES)), BITS // 8, 8
    )
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_shards(codes, Path(folder))
        opening = {
            name: best(lambda verify=verify: open_shards(manifest, verify=verify), 3, time.perf_counter)[0]
            for name, verify in (("verified", True), ("unverified", False))
        }
        whole, parts = Index.build(codes), ShardedIndex.build(open_shards(manifest))
        batches = [measure_batch(whole, parts, queries[:batch], 2 if batch > 1 else 5) for batch in BATCHES]
    result = {
        **machine(),
        "codes": count,
        "bits": BITS,
        "shards": SHARDS,
        "k": K,
        "open_ms": opening,
        "batches": batches,
    }
    if not quick:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    print(draw(result))


if __name__ == "__main__":
    main()
