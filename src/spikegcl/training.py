"""The training loop: contrast the graph with a corrupted one, block by block, one optimiser step an epoch."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spikegcl import neurons, noise, world
from spikegcl.augment import clean_view
from spikegcl.config import Config, fit_to_graph, preset
from spikegcl.encoder import Seen
from spikegcl.errors import ConfigError, FeatureError, LabelError
from spikegcl.features import ColumnMoments, Features
from spikegcl.groups import make_groups
from spikegcl.inductive import match_columns, training_order
from spikegcl.memory import reuse_freed_memory
from spikegcl.model import SpikeGCL
from spikegcl.objectives import OBJECTIVES
from spikegcl.parts import embed_parts, partition, take_part
from spikegcl.probes import linear_probe
from spikegcl.propagate import local_order, make_operator
from spikegcl.streaming import ROWS, array_in_memory, row_blocks, temporary_array
from spikegcl.views import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from spikegcl.components import Components
    from spikegcl.graph import Graph, Split
    from spikegcl.objectives import Objective
    from spikegcl.resume import Checkpoints

log = logging.getLogger("spikegcl")

CALIBRATION_NODES = 1024
CALIBRATION_PASSES = 10  # after ten passes the initial statistics weigh 0.9^20 = 12 %


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


class Session:
    """A graph made ready for a model, in one piece or in ``config.parts`` parts that the processes share.

    A model that reads components starts where no gradient is needed (:func:`closed_forms.fit_channels`), or with
    ``start=False`` from random weights; either way its channels fire at fixed shares of the nodes, ``rates`` (T x H).
    Components that were found before can be given as ``inputs``.
    """

    def __init__(
        self,
        graph: Graph,
        config: Config,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        start: bool = True,
        inputs: Components | None = None,
    ) -> None:
        if graph.features is None:
            raise FeatureError("the graph has no features; give some, or use spikegcl.structural_features(graph)")
        check_device(device)
        self.config = fit_to_graph(config, graph)
        if self.config.parts < world.size():
            raise ConfigError(f"{world.size()} processes need as many parts; give --parts {world.size()} or more")
        self.graph, components = graph, None
        if self.config.inputs == "components":
            components, scores = _find_components(graph, self.config, seed, inputs)
            graph = replace(graph, features=scores, columns=None)
        self.groups = make_groups(graph, self.config.steps, self.config.grouping, seed)
        self.model = SpikeGCL(self.config, self.groups, seed).to(device)
        self.model.inputs = components
        self.read, self.seed, self.device = graph, seed, device
        self.member = None
        if self.config.parts > 1:
            self.member = world.from_first(lambda: partition(graph, self.config.parts, self.model.encoder.hops))
        self._last: tuple[int, Piece] | None = None
        if self.config.threshold == 0:
            self._calibrate_threshold()
        if components is not None:
            self.rates = torch.full((self.model.steps, self.model.channels), 0.5)
            if start:
                self._start(components)
            self.settle_thresholds()

    @cached_property
    def whole(self) -> Piece:
        """The graph in one piece, nodes in an order that keeps neighbours close."""
        order = local_order(self.read)
        operator = make_operator(self.read, self.model.encoder.operator_kind, self.device, order)
        return Piece(self.model, operator, Features(self.read, self.device, order), order, self.seed)

    def pieces(self, *, shared: bool = True) -> Iterator[Piece]:
        """The whole graph, or parts, in memory one at a time: those of this process, or all if they are not shared."""
        if self.member is None:
            yield self.whole
            return
        for number in world.share(self.config.parts) if shared else range(self.config.parts):
            if self._last is None or self._last[0] != number:
                self._last = None
                self._last = number, self._load(number)
            yield self._last[1]

    def _load(self, number: int) -> Piece:
        encoder = self.model.encoder
        part = take_part(self.read, np.flatnonzero(self.member == number), encoder.hops)
        operator, features = part.load(encoder.operator_kind, self.device, self.moments)
        return Piece(self.model, operator, features, part.nodes[: part.own], self.seed)

    @cached_property
    def scores(self) -> NDArray[np.float32]:
        """The components of every node, N x k; those of a small graph in the order of :attr:`whole`."""
        scores: NDArray[np.float32] = self.read.features
        return scores[local_order(self.read)] if len(scores) <= ROWS else scores

    @cached_property
    def moments(self) -> ColumnMoments:
        return ColumnMoments(self.read.features)

    def embed(self) -> NDArray[np.uint8]:
        """Codes of the graph as it is (packed), in every process."""
        codes = np.zeros((self.graph.num_nodes, (self.model.bits + 7) // 8), np.uint8)
        for piece in self.pieces():
            codes[piece.nodes] = self.model.embed(piece.clean)[: piece.own].cpu().numpy()
        if self.member is not None:
            world.add_up([torch.from_numpy(codes)])
        return codes

    @torch.no_grad()
    def warm_up(self, passes: int) -> None:
        """Move the running statistics as ``passes`` epochs would, without learning anything."""
        for epoch in range(1, passes + 1):
            for view_of in (Piece.positive, Piece.negative):
                with self.gathered_statistics():
                    for piece in self.pieces():
                        view = view_of(piece, epoch)
                        for first, steps in self.model.chunks(piece.operator.num_nodes):
                            self.model.encoder.watch(view, first, steps)

    @contextlib.contextmanager
    def gathered_statistics(self) -> Iterator[None]:
        """Batch statistics of all pieces and processes move the running averages at the end, as one graph's would."""
        encoder = self.model.encoder
        encoder.seen = Seen()
        try:
            yield
            encoder.observe(encoder.seen)
        finally:
            encoder.seen = None

    @torch.no_grad()
    def _calibrate_threshold(self) -> None:
        """Choose the threshold at which the untrained neuron fires at the configured rate, on a sample of nodes."""
        self.warm_up(CALIBRATION_PASSES)
        model, count = self.model, self.graph.num_nodes
        sample = torch.randperm(count, generator=noise.generator(self.seed, "threshold"))[:CALIBRATION_NODES]
        currents = model.head.new_zeros(len(sample), model.bits)
        with model.frozen():
            for piece in self.pieces():
                rows = np.arange(count) if self.member is None else piece.nodes
                _, taken, found = np.intersect1d(sample.numpy(), rows, assume_unique=True, return_indices=True)
                for first, steps in model.chunks(piece.operator.num_nodes):
                    bits = slice(first * model.channels, (first + steps) * model.channels)
                    currents[taken, bits] = model.encoder.currents(piece.clean, first, steps).dense()[found]
        if self.member is not None:
            world.add_up([currents])
        sequence = torch.stack(currents.split(model.channels, 1))
        neuron = model.neuron.neuron
        low, high = 0.0, float(sequence.clamp(min=0).sum(0).max()) + 1e-6
        for _ in range(40):  # firing falls as the threshold rises: bisect to float32 precision
            middle = (low + high) / 2
            rate = float(neurons.run(replace(neuron, threshold=middle), sequence, model.neuron.tau)[0].mean())
            low, high = (middle, high) if rate > self.config.firing_rate else (low, middle)
        self.config = self.config.replace(threshold=max(high, 1e-6))
        model.config = self.config
        model.neuron.neuron = replace(neuron, threshold=self.config.threshold)

    @torch.no_grad()
    def _start(self, components: Components) -> None:
        """Make the first layer rotations and single columns, with currents of deviation 1."""
        from spikegcl.closed_forms import fit_channels

        scores = self.scores
        directions, rates = fit_channels(components, scores, self.model.bits, seed=self.seed)
        blocks = (scores[block] @ directions for block in row_blocks(len(scores)))
        square = sum(np.square(block).sum(0, dtype=np.float64) for block in blocks) / len(scores)
        deviation = np.sqrt(square).clip(min=1e-12)  # scores have mean zero
        weight = self.model.encoder.first.weight.view(self.groups.steps, self.groups.columns, -1)
        scaled = torch.from_numpy((directions / deviation).astype(np.float32))
        weight.copy_(scaled.view(len(directions), self.groups.steps, -1).transpose(0, 1))
        self.rates = torch.from_numpy(rates).view(self.groups.steps, -1)

    @torch.no_grad()
    def settle_thresholds(self) -> None:
        """Move every channel's bias so that its share of the nodes (``rates``) fires at the one threshold.

        Every process goes through all parts: a share of the nodes is one of all nodes.
        """
        model, neuron, tau = self.model, self.model.neuron.neuron, self.model.neuron.tau
        gain = 1.0 if neuron.kind == "IF" else float(tau)
        new_array = array_in_memory if self.member is None else temporary_array
        membrane = torch.from_numpy(new_array((self.graph.num_nodes, model.channels)))
        with model.frozen():
            for step in range(model.steps):
                for piece in self.pieces(shared=False):
                    current = model.encoder.currents(piece.clean, step, 1).dense()[: piece.own].cpu()
                    membrane[piece.nodes] = neurons.charge(neuron, current, membrane[piece.nodes], tau.cpu())
                lift = neuron.threshold - neurons.exceeded_by(membrane, self.rates[step])
                model.encoder.first.bias[step] += (lift * gain).to(model.head.device)
                for block in row_blocks(len(membrane)):
                    membrane[block] = neurons.release(neuron, membrane[block] + lift)[1]


def _find_components(
    graph: Graph, config: Config, seed: int, known: Components | None
) -> tuple[Components, NDArray[np.float32]]:
    from spikegcl.components import component_count, fit_components

    blocks = config.parts if config.parts > 1 else None
    if known is not None:
        return known, known.apply(graph, blocks)
    count = config.components or component_count(config.steps * config.channels)
    return fit_components(graph, count, seed=seed, blocks=blocks)


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


def check_device(device: torch.device | str) -> None:
    """An error that says so if there is no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used here: {reason}; try cpu") from None


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
