"""One way to judge codes: seeds, splits, probe, floors and the rows that go into tables."""

from __future__ import annotations

import functools
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import spikegcl
from spikegcl import floors
from spikegcl.bits import unpack
from spikegcl.datasets import make_split
from spikegcl.energy import count, energies
from spikegcl.memory import peak_mb
from spikegcl.probes import REPEATS, linear_probe
from spikegcl.training import Clock, Epoch, Trained, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from spikegcl.config import Config
    from spikegcl.graph import Graph, Split

FLOORS = ("untrained", "projection")


@dataclass(frozen=True)
class Judged:
    """A trained seed with its row."""

    trained: Trained
    row: dict[str, Any]


def run_seed(
    graph: Graph,
    config: Config,
    seed: int,
    *,
    probe: str = "logreg",
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Judged:
    """Train one seed and, where the graph has labels, probe its codes and the floors on the seed's split."""
    split = None if graph.labels is None else make_split(graph, seed)
    trained = train(graph, config, seed=seed, split=split, on_epoch=on_epoch, device=device)
    clock = Clock()
    row: dict[str, Any] = {
        "method": "spikegcl",
        "dataset": graph.name,
        "seed": seed,
        "split": None if split is None else split.hash,
        "config": trained.config.hash,
        "graph": graph.hash,
        "epochs": len(trained.history),
        "epoch": trained.epoch,
        "select": trained.config.select,
        "bits": trained.model.bits,
        "parameters": sum(p.numel() for p in trained.model.parameters()),
        **firing(trained.codes, trained.model.bits),
        "energy": energies(count(trained.model, graph, trained.codes)),
    }
    if split is not None:
        row |= {"probe": probe, **_accuracy(trained.codes, graph, split, trained.model.bits, probe, seed)}
        clock.lap("probe")
        codes = {
            "untrained": floors.untrained(graph, trained.config, seed),
            "projection": floors.projection(graph, trained.model.bits, seed),
        }
        row["floors"] = {
            name: _accuracy(packed, graph, split, trained.model.bits, probe, seed) for name, packed in codes.items()
        }
    seconds = {name: trained.seconds[name] + clock.seconds["probe"] * (name == "probe") for name in trained.seconds}
    row |= {"seconds": seconds, "peak_mb": peak_mb(), "versions": versions()}
    return Judged(trained, row)


def _accuracy(
    packed: NDArray[np.uint8], graph: Graph, split: Split, bits: int, probe: str, seed: int
) -> dict[str, float]:
    result = linear_probe(packed, graph.labels, split, kind=probe, bits=bits, seed=seed, repeats=REPEATS)
    return {"val_accuracy": result.val_accuracy, "test_accuracy": result.test_accuracy}


def firing(packed: NDArray[np.uint8], bits: int) -> dict[str, float]:
    """Mean firing rate, bits that never fire, bits that always fire, and steps outside 20 to 60 %."""
    rates = unpack(packed, bits).mean(0)
    return {
        "firing_rate": float(rates.mean()),
        "dead_bits": int((rates == 0).sum()),
        "constant_bits": int((rates == 1).sum()),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of one method on one dataset."""
    first = rows[0]
    summary: dict[str, Any] = {
        "dataset": first["dataset"],
        "method": first["method"],
        "seeds": [row["seed"] for row in rows],
        "select": first["select"],
        "bits": first["bits"],
    }
    if "test_accuracy" in first:
        summary["probe"] = first["probe"]
        summary["test_accuracy"] = spread(row["test_accuracy"] for row in rows)
        summary["val_accuracy"] = spread(row["val_accuracy"] for row in rows)
        summary["floors"] = {
            name: spread(row["floors"][name]["test_accuracy"] for row in rows) for name in first["floors"]
        }
    for name in ("firing_rate", "dead_bits", "constant_bits"):
        summary[name] = float(np.mean([row[name] for row in rows]))
    summary["energy"] = {rule: float(np.mean([row["energy"][rule] for row in rows])) for rule in first["energy"]}
    summary["parameters"] = first["parameters"]
    summary["seconds"] = {
        name: float(np.mean([row["seconds"][name] for row in rows])) for name in ("train", "embed", "probe")
    }
    summary["peak_mb"] = max(row["peak_mb"] for row in rows)
    return summary


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    array = np.array(list(values), dtype=np.float64)
    return {"mean": float(array.mean()), "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0}


@functools.cache
def versions() -> dict[str, str]:
    """Versions a number depends on, and the commit when run from a checkout."""
    import torch

    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "none"
    return {
        "spikegcl": spikegcl.__version__,
        "commit": commit,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
