"""One way to judge a method: seeds, splits, probe, floors and the rows that go into tables."""

from __future__ import annotations

import functools
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import spikegcl
from spikegcl import floors, world
from spikegcl.baselines import SIGN, Fitted, Method, Shape, find_method
from spikegcl.bits import ones_per_bit
from spikegcl.datasets import make_split
from spikegcl.energy import energies
from spikegcl.memory import peak_mb
from spikegcl.probes import REPEATS, check_labels, check_parts, linear_probe
from spikegcl.session import check_device
from spikegcl.training import Clock, Trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.settings import Settings
    from spikegcl.training import Epoch


CHANGED = "+changes"  # behind the commit of a number whose code is not exactly that of the commit


@dataclass(frozen=True)
class Judged:
    """What a method made of one seed, with its row."""

    fitted: Fitted
    row: dict[str, Any]

    @property
    def trained(self) -> Trained:
        """The trained SpikeGCL model; other methods have none."""
        assert self.fitted.trained is not None
        return self.fitted.trained


def run_seed(
    graph: Graph,
    settings: Settings,
    seed: int,
    *,
    method: str | Method = "spikegcl",
    probe: str = "logreg",
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Judged:
    """Run a method for one seed and, where the graph has labels, judge it and its floors on the seed's split.

    Embeddings and codes are probed; the predictions of a supervised method are compared with the labels.
    """
    method = find_method(method) if isinstance(method, str) else method
    check_device(device)
    split = None if graph.labels is None else make_split(graph, seed)
    if split is not None:
        check = check_labels if method.unsupervised else check_parts
        check(graph.labels, split, graph.num_nodes)  # now, not when the method has been trained
    fitted = method.fit(graph, settings, seed=seed, split=split, on_epoch=on_epoch, device=device)
    clock, shape = Clock(), Shape.of(graph)
    row: dict[str, Any] = {
        "method": method.name,
        "dataset": graph.name,
        "seed": seed,
        "split": None if split is None else split.hash,
        "config": fitted.settings.hash,
        "graph": graph.hash,
        "epochs": len(fitted.history),
        "epoch": fitted.epoch,
        "select": fitted.select,
        **size(fitted),
        "parameters": _parameters(method, fitted, shape),
    }
    if fitted.codes is not None and fitted.bits is not None:
        row |= firing(fitted.codes, fitted.bits)
    row["energy"] = energies(fitted.operations or method.operations(shape, fitted.settings, fitted.spikes))
    if fitted.notes:
        row["notes"] = list(fitted.notes)
    if split is not None:
        own = world.from_first(lambda: judge(fitted, graph, split, probe, seed))
        row |= {"probe": probe if fitted.predictions is None else "own", **own}
        clock.lap("probe")
        row["floors"] = {
            name: world.from_first(functools.partial(judge, floor, graph, split, probe, seed))
            for name, floor in floors_of(method, fitted, graph, seed, device)
        }
    seconds = {name: fitted.seconds[name] + clock.seconds["probe"] * (name == "probe") for name in fitted.seconds}
    row |= {"seconds": seconds, "threads": torch.get_num_threads(), "peak_mb": peak_mb(), "versions": versions()}
    return Judged(fitted, row)


def _parameters(method: Method, fitted: Fitted, shape: Shape) -> int:
    """Those of the model that was trained; how many inputs it has may depend on more than the shape of the graph."""
    if fitted.trained is None:
        return method.parameters(shape, fitted.settings)
    return sum(parameter.numel() for parameter in fitted.trained.model.parameters())


def size(fitted: Fitted) -> dict[str, int]:
    """``bits`` of a code, ``dimensions`` of a float embedding; predictions have neither."""
    if fitted.bits is not None:
        return {"bits": fitted.bits}
    return {} if fitted.embedding is None else {"dimensions": fitted.embedding.shape[1]}


def judge(fitted: Fitted, graph: Graph, split: Split, probe: str, seed: int) -> dict[str, float]:
    """Validation and test accuracy (fractions): of a linear probe, or of the method's own predictions."""
    if fitted.predictions is not None:
        hits = fitted.predictions == graph.labels
        return {"val_accuracy": float(hits[split.val].mean()), "test_accuracy": float(hits[split.test].mean())}
    values = fitted.codes if fitted.embedding is None else fitted.embedding
    result = linear_probe(values, graph.labels, split, kind=probe, bits=fitted.bits, seed=seed, repeats=REPEATS)
    return {"val_accuracy": result.val_accuracy, "test_accuracy": result.test_accuracy}


def floors_of(method: Method, fitted: Fitted, graph: Graph, seed: int, device: str) -> Iterator[tuple[str, Fitted]]:
    """What a result has to be compared with, at its own number of bits (a float embedding: one bit a dimension).

    ``untrained`` is the method's encoder before training, ``<method>+sign`` a float embedding cut at its medians,
    ``projection`` a random projection of propagated features; of SpikeGCL they are those of :func:`floors.below`. A
    supervised method has none: it is given the labels.
    """
    settings, width = fitted.settings, 0 if fitted.embedding is None else fitted.embedding.shape[1]
    if fitted.trained is not None:
        trained, bits = fitted.trained, fitted.trained.model.bits
        for name, codes in floors.below(graph, trained.given, bits, seed, trained.model.inputs).items():
            yield name, Fitted(settings, codes=codes, bits=bits)
        return
    if method.unsupervised and fitted.history:
        before = settings.replace(epochs=0)
        yield "untrained", method.fit(graph, before, seed=seed, split=None, on_epoch=None, device=device)
    if fitted.embedding is not None:
        yield method.name + SIGN, Fitted(settings, codes=floors.sign_at_median(fitted.embedding), bits=width)
    if fitted.predictions is None and method.name != "projection":
        bits = fitted.bits or width
        yield "projection", Fitted(settings, codes=floors.projection(graph, bits, seed), bits=bits)


def firing(packed: NDArray[np.uint8], bits: int) -> dict[str, float]:
    """Mean firing rate, bits that never fire, bits that always fire."""
    rates = ones_per_bit(packed, bits) / len(packed)
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
        **{name: first[name] for name in ("bits", "dimensions") if name in first},
    }
    if "test_accuracy" in first:
        summary["probe"] = first["probe"]
        summary["test_accuracy"] = spread(row["test_accuracy"] for row in rows)
        summary["val_accuracy"] = spread(row["val_accuracy"] for row in rows)
        summary["floors"] = {
            name: spread(row["floors"][name]["test_accuracy"] for row in rows) for name in first["floors"]
        }
    for name in ("firing_rate", "dead_bits", "constant_bits") if "bits" in first else ():
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


def code_state() -> str:
    """Differs before and after a change of the code of a checkout; commits of other files do not count.

    Empty where nobody can tell.
    """
    try:
        return _git("rev-parse", "HEAD:./") + _git("status", "--porcelain", ".")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*command: str) -> str:
    here = str(Path(__file__).parent)
    asked = ["git", "--no-optional-locks", "-C", here, *command]  # without, the status of a work tree writes its index
    finished = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
    return finished.stdout.strip()


@functools.cache
def versions() -> dict[str, str]:
    """Versions a number depends on; of a checkout the commit, and whether its code has been changed since."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # installed in some work tree, it is no part of it
        commit = _git("rev-parse", "--short", "HEAD") + (CHANGED if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        commit = "none"
    return {
        "spikegcl": spikegcl.__version__,
        "commit": commit,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
