"""Search, size, opening and linear maps of a million codes of 512 bits, against the same codes as float32.

    python -m benchmarks.codes [--quick]

Search and linear maps run in one thread on both sides and are given in CPU time, which on a quiet machine is the time
on the clock and on a busy one still gives the same ratios. Opening is given in time on the clock. Best of several runs.
``--quick`` takes 100 000 codes and writes nothing; else the numbers go to results/performance/codes.json.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numba
import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from benchmarks.run import RESULTS, table
from spikegcl.bits import exact_head
from spikegcl.codes import Codes, open_codes
from spikegcl.search import Index

if TYPE_CHECKING:
    from collections.abc import Callable

BITS, CLASSES, BLOCK, K = 512, 16, 1 << 16, 10
# One query, the largest round batch that faiss answers by its own float kernels, and one that it hands to BLAS.
BATCHES = (1, 64, 512)
LIMITS = {"search": 30, "memory": 32, "open_ms": 50, "linear": 3}


def best(call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    """Milliseconds of the fastest call, and what it returned."""
    times = []
    for _ in range(repeats):
        started = clock()
        returned = call()
        times.append(1000 * (clock() - started))
    return min(times), returned


def floats(packed: np.ndarray) -> np.ndarray:
    """Packed rows as float32 0/1."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32)


def grown(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call returns, and by how many megabytes it made the process grow."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    made = call()
    gc.collect()
    return made, (psutil.Process().memory_info().rss - before) / 1e6


def float_index(codes: Codes) -> Any:
    index = faiss.IndexFlatL2(BITS)
    for start in range(0, len(codes), BLOCK):
        index.add(floats(codes.packed[start : start + BLOCK]))
    return index


def measure_batch(codes: Codes, binary: Any, real: Any, batch: int) -> dict[str, Any]:
    query = codes[:batch]
    unpacked, index, repeats = floats(query.packed), Index.build(codes), 2 if batch > 1 else 5
    binary_ms, (found, _) = best(lambda: binary.search(query.packed, K), repeats)
    ours_ms, (_, ours) = best(lambda: index.search_rows(query, K), repeats)
    float_ms, (real_found, _) = best(lambda: real.search(unpacked, K), repeats)
    return {
        "batch": batch,
        "binary_ms": binary_ms,
        "ours_ms": ours_ms,
        "float_ms": float_ms,
        "ratio": float_ms / binary_ms,
        "same_distances": bool(np.array_equal(found, real_found) and np.array_equal(found, ours)),
    }


def measure_search(codes: Codes) -> dict[str, Any]:
    """Binary against float flat search, and the bytes each keeps."""
    binary, binary_mb = grown(codes.to_faiss)
    real, real_mb = grown(lambda: float_index(codes))
    return {
        "batches": [measure_batch(codes, binary, real, batch) for batch in BATCHES],
        "bytes": {"binary": binary.code_size * binary.ntotal, "float": real.code_size * real.ntotal},
        "grown_mb": {"binary": binary_mb, "float": real_mb},
    }


def measure_opening(codes: Codes, folder: Path) -> dict[str, float]:
    """Milliseconds to open the file, with and without verifying, for number and name ids."""
    times = {}
    for kind, ids in (("numbers", codes.ids), ("names", [f"node {n}" for n in range(len(codes))])):
        path = folder / f"{kind}.arrow"
        Codes(codes.packed, ids, codes.steps, codes.channels).save(path)
        times[f"{kind}, verified"] = best(partial(open_codes, path), 7, time.perf_counter)[0]
        times[f"{kind}, unverified"] = best(partial(open_codes, path, verify=False), 7, time.perf_counter)[0]
    return times


def measure_linear(codes: Codes) -> dict[str, Any]:
    """Logits of a linear probe from packed bytes against unpacking and a float32 product, block by block."""
    rng = np.random.default_rng(1)
    head = rng.normal(size=(BITS, CLASSES)), rng.normal(size=CLASSES)

    def unpacked(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        starts = range(0, len(codes), BLOCK)
        return np.concatenate([floats(codes.packed[start : start + BLOCK]) @ weight + bias for start in starts])

    exact, plain = exact_head(*head), tuple(part.astype(np.float32) for part in head)
    codes[:10].linear(*exact)  # compiles
    packed_ms, ours = best(lambda: codes.linear(*exact), 3)
    float_ms, expected = best(lambda: unpacked(*exact), 3)
    plain_differ = codes.linear(*plain).argmax(1) != unpacked(*plain).argmax(1)
    return {
        "packed_ms": packed_ms,
        "float_ms": float_ms,
        "ratio": float_ms / packed_ms,
        "same_logits": bool(np.array_equal(ours, expected)),
        "predictions_that_differ": int((ours.argmax(1) != expected.argmax(1)).sum()),
        "predictions_that_differ_without_exact_head": int(plain_differ.sum()),
    }


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    packages = ("faiss-cpu", "numba", "numpy", "pyarrow")
    versions = {name: importlib.metadata.version(name) for name in packages}
    load = os.getloadavg()[0]  # opening is timed on the clock, and slower on a machine that is busy
    return {"cpu": model, "cores": os.cpu_count(), "load": load, "threads_used": 1, "versions": versions}


def draw(result: dict[str, Any]) -> str:
    search, linear, opening = result["search"], result["linear"], result["open_ms"]
    lines = [
        [f"search, {row['batch']} queries, k = {K}", f"{row['binary_ms']:.1f} ms", f"{row['float_ms']:.0f} ms",
         f"{row['ratio']:.1f}x", f">= {LIMITS['search']}x" if row["batch"] == BATCHES[1] else ""]
        for row in search["batches"]
    ]  # fmt: skip
    sizes = search["bytes"]
    lines += [
        ["memory", f"{sizes['binary'] / 1e6:.0f} MB", f"{sizes['float'] / 1e6:.0f} MB",
         f"{sizes['float'] / sizes['binary']:.0f}x", f"{LIMITS['memory']}x"],
        [f"linear map to {CLASSES} classes", f"{linear['packed_ms']:.0f} ms", f"{linear['float_ms']:.0f} ms",
         f"{linear['ratio']:.1f}x", f">= {LIMITS['linear']}x"],
        ["its predictions that differ", str(linear["predictions_that_differ"]), "", "", "0"],
    ]  # fmt: skip
    lines += [
        [f"open, ids are {name}", f"{ms:.1f} ms", "", "", f"< {LIMITS['open_ms']} ms" if "numbers" in name else ""]
        for name, ms in opening.items()
    ]
    text = table(f"{result['codes']:,} codes of {BITS} bits, one thread", ["", "bits", "float32", "", "wanted"], lines)
    return text + (
        "\nIn batches of 250 queries and more (at 512 dimensions) faiss searches floats by a BLAS product, near the"
        "\npeak of the machine, where the advantage of bits is that of the last search row.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 000 codes; nothing is written")
    quick = parser.parse_args().quick
    numba.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    count = 100_000 if quick else 1_000_000
    packed = np.random.default_rng(0).integers(0, 256, (count, BITS // 8), dtype=np.uint8)
    codes = Codes(packed, np.arange(count), BITS // 8, 8)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        opening = measure_opening(codes, Path(folder))
        result = {
            **machine(),
            "codes": count,
            "bits": BITS,
            "open_ms": opening,
            "linear": measure_linear(codes),
            "search": measure_search(codes),
        }
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "codes.json").write_text(json.dumps(result, indent=1) + "\n")
    print(draw(result))


if __name__ == "__main__":
    main()
