"""A graph made ready for a model: its pieces on the device, the model's inputs, weights to start from, thresholds."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from spikegcl import neurons, noise, world
from spikegcl.config import Config, fit_to_graph
from spikegcl.encoder import Seen
from spikegcl.errors import ConfigError, GraphError
from spikegcl.features import ColumnMoments, Features
from spikegcl.graph import features_of
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL
from spikegcl.parts import partition, take_part
from spikegcl.propagate import local_order, make_operator
from spikegcl.streaming import ROWS, array_in_memory, row_blocks, temporary_array
from spikegcl.views import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.sources import Sources

CALIBRATION_NODES = 1024
CALIBRATION_PASSES = 10  # after ten passes the initial statistics weigh 0.9^20 = 12 %


class Session:
    """A graph made ready for a model, in one piece or in ``config.parts`` parts that the processes share.

    A model that reads components starts where no gradient is needed (:func:`closed_forms.fit_channels`), or with
    ``start=False`` from random weights; either way its channels fire at fixed shares of the nodes, ``rates`` (T x H).
    Sources that were found before can be given as ``inputs``.
    """

    def __init__(
        self,
        graph: Graph,
        config: Config,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        start: bool = True,
        inputs: Sources | None = None,
    ) -> None:
        check_graph(graph)
        check_device(device)
        self.config = fit_to_graph(config, graph)
        if self.config.parts < world.size():
            raise ConfigError(f"{world.size()} processes need as many parts; give --parts {world.size()} or more")
        self.graph, sources = graph, None
        if self.config.inputs == "components":
            sources, scores = _find_sources(graph, self.config, seed, inputs)
            graph = replace(graph, features=scores, columns=None)
        self.groups = make_groups(graph, self.config.steps, self.config.grouping, seed)
        self.model = SpikeGCL(self.config, self.groups, seed).to(device)
        self.model.inputs = sources
        self.read, self.seed, self.device = graph, seed, device
        self.member = None
        if self.config.parts > 1:
            self.member = world.from_first(lambda: partition(graph, self.config.parts, self.model.encoder.hops))
        self._last: tuple[int, Piece] | None = None
        if self.config.threshold == 0:
            self._calibrate_threshold()
        if sources is not None:
            self.rates = torch.full((self.model.steps, self.model.channels), 0.5)
            if start:
                self._start(sources)
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
    def _start(self, sources: Sources) -> None:
        """Make the first layer rotations and single columns, with currents of deviation 1."""
        from spikegcl.closed_forms import fit_channels

        scores = self.scores
        directions, rates = fit_channels(sources, scores, self.model.bits, seed=self.seed)
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


def _find_sources(
    graph: Graph, config: Config, seed: int, known: Sources | None
) -> tuple[Sources, NDArray[np.float32]]:
    from spikegcl.sources import PROPAGATIONS, fit_sources

    blocks = config.parts if config.parts > 1 else None
    if known is not None:
        return known, known.apply(graph, blocks)
    return fit_sources(
        graph, config.steps * config.channels, components=config.components,
        propagation=PROPAGATIONS.get(config.propagation), seed=seed, blocks=blocks,
    )  # fmt: skip


def check_graph(graph: Graph) -> None:
    """An error if there is nothing to make codes of, or nothing to tell apart."""
    features_of(graph)
    if graph.num_nodes < 2:
        raise GraphError("the graph has one node; codes tell nodes apart, so give at least two")


def check_device(device: torch.device | str) -> None:
    """An error that says so if there is no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used here: {reason}; try cpu") from None
