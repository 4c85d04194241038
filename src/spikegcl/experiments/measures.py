"""What a cell can measure: functions of a cell and its graph, run in a process of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikegcl.baselines import Fitted, Shape, find_method

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
    what the peak memory of the epochs was above the memory in use before them.
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
    return {"dimensions": fitted.embedding.shape[1], "points": points, "seconds": fitted.seconds}


def _settings(cell: Cell) -> Settings:
    settings: Settings = find_method(cell.method).settings()
    return settings.replace(**cell.settings)
