"""The training loop: contrast the graph with a corrupted one, block by block, one optimiser step an epoch."""

from __future__ import annotations

import functools
import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl import world
from spikegcl.augment import clean_view
from spikegcl.config import Config, preset
from spikegcl.errors import LabelError, TrainingError
from spikegcl.features import Features
from spikegcl.inductive import check_ids, match_columns, training_order
from spikegcl.memory import reuse_freed_memory
from spikegcl.objectives import OBJECTIVES
from spikegcl.parts import embed_parts, partition
from spikegcl.probes import linear_probe
from spikegcl.propagate import make_operator
from spikegcl.session import Session, check_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.model import SpikeGCL
    from spikegcl.objectives import Objective
    from spikegcl.resume import Checkpoints

log = logging.getLogger("spikegcl")


@dataclass(frozen=True)
class Epoch:
    """What one epoch reports to the log and to callbacks.

    ``gradient_norms`` has one value a step: the norm of the loss's gradient at what the neurons of the graph receive.
    """

    epoch: int
    loss: float
    seconds: float
    val_accuracy: float | None = None
    gradient_norms: list[float] | None = None


@dataclass
class Progress:
    """Where the loop stands between two epochs; model and objective have the rest of what later epochs depend on.

    ``kept`` are weights and statistics after epoch ``kept_epoch``, the one to return, and ``kept_score`` its validation
    accuracy if that decides. ``best`` is the highest score early stopping has seen (validation accuracy, or the
    negative loss) and ``since`` the number of epochs since then.
    """

    kept: dict[str, torch.Tensor]
    seconds: dict[str, float]
    kept_epoch: int = 0
    kept_score: float = -math.inf
    best: float = -math.inf
    since: int = 0
    history: list[Epoch] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """A finished training: the model, its codes on the training graph, and how it went.

    ``codes`` is uint8, N x ceil(bits / 8). ``config`` has everything settled (steps, threshold) that ``given`` left
    open. ``epoch`` is the epoch whose codes these are, ``seconds`` the time spent in train, embed and probe.
    """

    model: SpikeGCL
    config: Config
    given: Config
    codes: NDArray[np.uint8]
    epoch: int
    history: list[Epoch]
    seconds: dict[str, float]


def train(
    graph: Graph,
    config: Config | None = None,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: torch.device | str = "cpu",
    checkpoints: Checkpoints | None = None,
) -> Trained:
    """Train SpikeGCL on ``graph`` and return the model with its codes; zero epochs give the untrained encoder.

    Without ``config`` the preset ``compact`` is trained.

    Labels and ``split`` are looked at only if ``config`` selects or stops by validation accuracy, and then only those
    of training and validation nodes. ``checkpoints`` are written after epochs, and the newest of this seed is taken
    up: whoever gives them sees to it that graph, config and device are those they were written with.
    """
    config = given = config or preset("compact", graph.name)
    judged = "validation" in (config.select, config.stop)
    if judged and (graph.labels is None or split is None):
        raise LabelError("selecting or stopping by validation accuracy needs labels and a split; set select=last")
    reuse_freed_memory()
    clock = Clock()
    session = Session(graph, config, seed, device)
    model, config = session.model, session.config
    objective = OBJECTIVES[config.objective](session) if config.epochs else None
    progress = Progress(model.state_dict(), clock.seconds)
    if objective is not None:
        if checkpoints is not None:
            checkpoints.restore(seed, model, objective, progress)
        progress = _start_with_first(model, objective, progress)
    clock.lap("train")

    for epoch in range(len(progress.history) + 1, config.epochs + 1):
        if config.stop != "epochs" and progress.since >= config.patience:
            break
        assert objective is not None
        loss, norms = objective.epoch(epoch)
        if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
            raise TrainingError(
                f"training diverged: weights are not finite after epoch {epoch}; lower lr ({config.lr:g})"
            )
        seconds, accuracy = clock.lap("train"), None
        if judged and split is not None:
            codes = session.embed()
            clock.lap("embed")
            accuracy = world.from_first(
                functools.partial(_validation_accuracy, codes, graph, split, bits=model.bits, seed=seed)
            )
            clock.lap("probe")
        progress.history.append(Epoch(epoch, loss, seconds, accuracy, norms))
        score = accuracy if accuracy is not None and config.stop == "validation" else -loss
        progress.since = 0 if score > progress.best else progress.since + 1
        progress.best = max(progress.best, score)
        if config.select == "last" or (accuracy is not None and accuracy > progress.kept_score):
            progress.kept_epoch, progress.kept_score = epoch, -math.inf if accuracy is None else accuracy
            progress.kept = {name: value.clone() for name, value in model.state_dict().items()}
        if checkpoints is not None:
            checkpoints.save(seed, model, objective, progress)
        if on_epoch is not None:
            on_epoch(progress.history[-1])

    model.load_state_dict(progress.kept)
    codes = session.embed()
    clock.lap("embed")
    if len(codes) > 1 and (codes == codes[0]).all():
        log.warning("all nodes have the same code: the features, or without them the structure, do not tell them apart")
    return Trained(model, config, given, codes, progress.kept_epoch, progress.history, clock.seconds)


def _start_with_first(model: SpikeGCL, objective: Objective, progress: Progress) -> Progress:
    """Go on where process 0 does, which has the checkpoints."""
    weights, state, progress = world.from_first(lambda: (model.state_dict(), objective.state(), progress))
    if world.rank() > 0 and progress.history:
        model.load_state_dict(weights)
        objective.restore(state, len(progress.history))
    return progress


def _validation_accuracy(codes: NDArray[np.uint8], graph: Graph, split: Split, *, bits: int, seed: int) -> float:
    return linear_probe(codes, graph.labels, split, bits=bits, seed=seed).val_accuracy


class Clock:
    """Seconds by activity; each lap adds the time since the last one."""

    def __init__(self) -> None:
        self.seconds = {"train": 0.0, "embed": 0.0, "probe": 0.0}
        self._last = time.perf_counter()

    def lap(self, activity: str) -> float:
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        self.seconds[activity] += passed
        return passed


def embed_graph(
    model: SpikeGCL,
    graph: Graph,
    columns: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    *,
    known: NDArray[Any] | None = None,
    parts: int = 1,
) -> NDArray[np.uint8]:
    """Codes of any graph with the model's feature columns, by the statistics frozen in training (packed).

    ``columns`` are the names of the model's columns: a graph with names has them matched in any order. ``known`` are
    the ids of the training nodes in training order: with them a node whose surroundings did not change has exactly the
    code it got in training, wherever its row stands now (docs/new-nodes.md). ``parts`` cuts the graph into so many that
    are embedded one after the other and by the processes among them: less memory, the same codes.
    """
    check_device(device)
    graph = match_columns(graph, columns, model.num_features, known=known).graph
    if model.inputs is not None and model.inputs.read_structure:
        check_ids(graph, known)
    order = None if known is None else training_order(graph.ids, known)
    if order is not None:
        graph = graph.subgraph(order)
    model = model.to(device)
    if parts == 1:
        graph = model.prepare(graph)
        operator = make_operator(graph, model.encoder.operator_kind, device)
        view = clean_view(operator, Features(graph, device), model.encoder.groups)
        packed: NDArray[np.uint8] = model.embed(view).cpu().numpy()
    else:
        member = world.from_first(lambda: partition(graph, parts, model.encoder.hops))
        packed = embed_parts(model, graph, member, device)
    if order is None:
        return packed
    codes = np.empty_like(packed)
    codes[order] = packed
    return codes
