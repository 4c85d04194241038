"""What a cell can measure: functions of a cell and its graph, run in a process of their own."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.baselines import Fitted, Shape, find_method
from spikegcl.graph import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.experiments import Cell
    from spikegcl.graph import Graph
    from spikegcl.settings import Settings
    from spikegcl.training import Epoch

    OnEpoch = Callable[[Epoch], None]


def statistics(cell: Cell, graph: Graph, on_epoch: OnEpoch) -> dict[str, Any]:
    """The shape of the graph, and the share of its possible directed edges that exist."""
    shape = Shape.of(graph)
    return {**shape._asdict(), "density": shape.edges / shape.nodes**2, "graph": graph.hash}


def accuracy(
    cell: Cell, graph: Graph, on_epoch: OnEpoch, *, device: str = "cpu", probe: str = "logreg"
) -> dict[str, Any]:
    """The row of :func:`protocol.run_seed`: accuracy, floors, size, parameters, energy, time and memory."""
    from spikegcl.protocol import run_seed

    return run_seed(
        graph, _settings(cell), cell.seed, method=cell.method, probe=probe, on_epoch=on_epoch, device=device
    ).row


def gradients(
    cell: Cell, graph: Graph, on_epoch: OnEpoch, *, device: str = "cpu", probe: str = "logreg"
) -> dict[str, Any]:
    """The row of SpikeGCL's accuracy, with what its backward passes needed and gave.

    ``gradient_norms`` has one number a step, the mean over epochs of :attr:`Epoch.gradient_norms`; ``training_mb`` is
    how much the epochs raised the peak memory of the process.
    """
    from spikegcl.memory import peak_mb
    from spikegcl.protocol import run_seed

    norms, peaks = list[list[float]](), [peak_mb()]

    def note(epoch: Epoch) -> None:
        norms.append(epoch.gradient_norms or [])
        peaks.append(peak_mb())
        on_epoch(epoch)

    judged = run_seed(graph, _settings(cell), cell.seed, method=cell.method, probe=probe, on_epoch=note, device=device)
    means = [sum(step) / len(step) for step in zip(*norms, strict=True)]
    return {**judged.row, "gradient_norms": means, "training_mb": peaks[-1] - peaks[0]}


def pace(cell: Cell, graph: Graph, on_epoch: OnEpoch, *, device: str = "cpu") -> dict[str, Any]:
    """Processor seconds of an epoch of training on one thread: the least over the epochs but the first.

    Not wall time, because cells run beside other work (but on an accelerator it is); and without the first epoch, which
    touches its memory anew.
    """
    import torch

    from spikegcl.datasets import make_split
    from spikegcl.experiments.threads import use_threads
    from spikegcl.protocol import versions

    kind, ends = torch.device(device).type, list[float]()

    def note(epoch: Epoch) -> None:
        if kind != "cpu":
            getattr(torch, kind).synchronize()
        ends.append(time.process_time() if kind == "cpu" else time.perf_counter())
        on_epoch(epoch)

    method, split = find_method(cell.method), make_split(graph, cell.seed)
    with use_threads(1):
        method.fit(graph, _settings(cell), seed=cell.seed, split=split, on_epoch=note, device=device)
    return {"epoch_seconds": min(after - before for before, after in itertools.pairwise(ends)), "versions": versions()}


def similarity(
    cell: Cell, graph: Graph, on_epoch: OnEpoch, *, device: str = "cpu", probe: str = "logreg"
) -> dict[str, Any]:
    """The row of SpikeGCL's accuracy, with ``cka`` of its feature groups and spikes: T x T, trained and untrained."""
    from spikegcl import floors
    from spikegcl.bits import unpack
    from spikegcl.protocol import run_seed
    from spikegcl.similarity import group_cka

    judged = run_seed(
        graph, _settings(cell), cell.seed, method=cell.method, probe=probe, on_epoch=on_epoch, device=device
    )
    trained = judged.trained
    codes = {"trained": trained.codes, "untrained": floors.untrained(graph, trained.given, cell.seed)}
    groups, bits = trained.model.encoder.groups, trained.model.bits
    cka = {
        name: group_cka(graph.features, unpack(code, bits), groups).round(4).tolist() for name, code in codes.items()
    }
    return {**judged.row, "cka": cka}


def few_labels(
    cell: Cell,
    graph: Graph,
    on_epoch: OnEpoch,
    *,
    labels: list[int],
    draws: int,
    device: str = "cpu",
    probe: str = "logreg",
) -> dict[str, Any]:
    """Test accuracy of probes that see few labels, for a method trained once and for its floors.

    ``points`` by labels per class (and ``all``: every training node), then by method or floor; means over ``draws`` of
    training nodes, the same for all.
    """
    from spikegcl import noise
    from spikegcl.datasets import make_split
    from spikegcl.protocol import floors_of, judge, size, versions

    method, split = find_method(cell.method), make_split(graph, cell.seed)
    fitted = method.fit(graph, _settings(cell), seed=cell.seed, split=split, on_epoch=on_epoch, device=device)
    judged = {cell.method: fitted, **dict(floors_of(method, fitted, graph, cell.seed, device))}
    parts = {
        str(count): [thin(split, graph.labels, count, noise.derive(cell.seed, "labels", draw)) for draw in range(draws)]
        for count in labels
    }
    points = {
        count: {
            name: float(np.mean([judge(one, graph, part, probe, cell.seed)["test_accuracy"] for part in drawn]))
            for name, one in judged.items()
        }
        for count, drawn in {**parts, "all": [split]}.items()
    }
    facts = {"split": split.hash, "config": fitted.settings.hash, "select": fitted.select, "versions": versions()}
    return {**facts, **size(fitted), "points": points, "seconds": fitted.seconds}


def thin(split: Split, labels: Any, count: int, key: int) -> Split:
    """The split with at most ``count`` training nodes of every class, drawn by ``key``; more keep those of fewer."""
    nodes = np.random.default_rng(key).permutation(split.train)
    kept = [nodes[labels[nodes] == label][:count] for label in np.unique(labels[nodes])]
    return Split(np.concatenate(kept), split.val, split.test)


def signs(
    cell: Cell, graph: Graph, on_epoch: OnEpoch, *, bits: list[int], device: str = "cpu", probe: str = "logreg"
) -> dict[str, Any]:
    """A float embedding, trained once and made into codes of several widths: ``points`` by number of bits."""
    from spikegcl.baselines.sign import sign_codes
    from spikegcl.datasets import make_split
    from spikegcl.protocol import judge

    split = make_split(graph, cell.seed)
    fitted = find_method(cell.method).fit(
        graph, _settings(cell), seed=cell.seed, split=split, on_epoch=on_epoch, device=device
    )
    assert fitted.embedding is not None
    codes = {count: sign_codes(fitted.embedding, count, cell.seed) for count in bits}
    points = {
        count: judge(Fitted(fitted.settings, codes=code, bits=count), graph, split, probe, cell.seed)
        for count, code in codes.items()
    }
    facts = {"split": split.hash, "config": fitted.settings.hash, "dimensions": fitted.embedding.shape[1]}
    return {**facts, "points": points, "seconds": fitted.seconds}


def _settings(cell: Cell) -> Settings:
    settings: Settings = find_method(cell.method).settings()
    return settings.replace(**cell.settings)
