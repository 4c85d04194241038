"""What a training will need, before it starts: memory, seconds, bits. A cost model and a short probe of the machine.

Time is work divided by speed. :func:`count_work` adds up what one epoch and one embedding do, chunk by chunk as the
model will run them (products with the graph, products with weights, passes over activations, features gathered);
:func:`probe_machine` measures how fast this machine does each, with the package's own functions on small arrays.

Memory is what the imported libraries take (measured) plus the arrays that are alive together (counted).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch

from spikegcl import closed_forms, components, objectives, session, sources, structural, training, views
from spikegcl.config import Config, fit_to_graph
from spikegcl.errors import ConfigError
from spikegcl.features import Columns, Features, block_linear, group_linear
from spikegcl.floors import CHUNK
from spikegcl.fused import Affine, activate, score_spikes
from spikegcl.graph import build_graph
from spikegcl.groups import make_groups
from spikegcl.model import CHUNK_FLOATS, SpikeGCL
from spikegcl.neurons import Neuron
from spikegcl.objectives import Margin
from spikegcl.propagate import attend, make_operator, propagate

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph

MB = 2.0**20
PROBE_SECONDS = 1.0
# Loading kernels from numba's cache takes up to this long; what takes longer was compiled, and only this once.
LOADING_SECONDS = 5.0
# Arrays of the probe: as many floats as a chunk of a small graph has, and four times as many, which no cache holds.
SMALL, LARGE, CHANNELS, DEGREE = 8192, 65536, 64, 16


@dataclass(frozen=True)
class Work:
    """Units of work; also used for seconds per unit. ``edges_far`` is for activations that exceed the cache."""

    edges: float = 0.0  # stored entries of the adjacency times columns
    edges_far: float = 0.0
    products: float = 0.0  # multiply-accumulates with weights
    activated: float = 0.0  # floats through the activation
    activated_back: float = 0.0
    fired: float = 0.0  # floats through the neuron
    fired_back: float = 0.0
    gathered: float = 0.0  # feature values copied into a chunk
    entries: float = 0.0  # non-zeros of sparse features times channels
    attended: float = 0.0  # stored entries of the adjacency that get an attention weight
    calls: float = 0.0  # chunks, for what does not grow with the graph

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def seconds(self, rates: Work) -> float:
        return float(sum(getattr(self, f.name) * getattr(rates, f.name) for f in fields(Work)))


@dataclass(frozen=True)
class Machine:
    """How fast this machine is (seconds per unit), and what a process costs before it has a graph.

    ``startup`` is the time the first training of a process spends on loading code, ``resident_mb`` its size then.
    """

    rates: Work
    startup: float
    resident_mb: float


@dataclass(frozen=True)
class Estimate:
    """What to expect. Seconds are without reading the graph and without probes and floors; memory is with them."""

    nodes: int
    edges: int
    features: int
    steps: int
    channels: int
    epochs: int
    bits: int
    parameters: int
    codes_mb: float
    float_mb: float
    peak_mb: float
    seconds_prepare: float
    seconds_epoch: float
    seconds_train: float
    seconds_embed: float

    @property
    def seconds_total(self) -> float:
        return self.seconds_train + self.seconds_embed


def estimate(graph: Graph, config: Config, machine: Machine | None = None) -> Estimate:
    """Memory, time and size of training ``config`` on ``graph``; the machine is probed unless it is given."""
    session.check_graph(graph)
    if config.parts > 1:
        raise ConfigError("estimates are of a graph in one piece; leave parts out (docs/scale.md has what they save)")
    machine = machine or probe_machine()
    config = fit_to_graph(config, graph)
    if config.inputs == "components":
        return _estimate_components(graph, config, machine)
    groups = make_groups(graph, config.steps, "chunk" if config.grouping == "cluster" else config.grouping)
    model = SpikeGCL(config, groups)
    epoch, embed = count_work(model, graph, backward=True), count_work(model, graph, backward=False)
    rates = machine.rates
    # Choosing the threshold takes forward passes over both views, and one over the clean graph.
    passes = 2 * session.CALIBRATION_PASSES + 1 if config.threshold == 0 else 0
    prepare = machine.startup + (passes + keeps_propagated(model, graph)) * embed.seconds(rates)
    embeddings = 1 + (config.epochs if "validation" in (config.select, config.stop) else 0)
    peak = count_bytes(model, graph)
    return _expected(graph, model, machine, peak, prepare, epoch.seconds(rates), embeddings * embed.seconds(rates))


def _expected(
    graph: Graph, model: SpikeGCL, machine: Machine, bytes_: float, prepare: float, epoch: float, embed: float
) -> Estimate:
    """What ``bytes_`` beyond the libraries, and seconds to prepare, for an epoch and to embed, amount to."""
    config, nodes = model.config, graph.num_nodes
    return Estimate(
        nodes=nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        steps=model.steps,
        channels=model.channels,
        epochs=config.epochs,
        bits=model.bits,
        parameters=sum(p.numel() for p in model.parameters()),
        codes_mb=nodes * ((model.bits + 7) // 8) / 1e6,
        float_mb=nodes * model.bits * 4 / 1e6,
        peak_mb=machine.resident_mb + bytes_ / MB,
        seconds_prepare=prepare,
        seconds_epoch=epoch,
        seconds_train=prepare + config.epochs * epoch,
        seconds_embed=embed,
    )


def _estimate_components(graph: Graph, config: Config, machine: Machine) -> Estimate:
    """The same for a model that reads components: preparing them is most of the work, epochs are short."""
    nodes, bits, rates = graph.num_nodes, config.steps * config.channels, machine.rates
    count = min(config.components or components.component_count(bits), graph.num_features, nodes - 1)
    inner = build_graph(np.zeros((2, 0), int), np.zeros((1, count)))
    model = SpikeGCL(config, make_groups(inner, config.steps, config.grouping))
    asks = config.propagation == "auto" and not structural.is_structural(graph)
    prepare = machine.startup + count_components(graph, count, bits, asks=asks).seconds(rates)
    batch = min(objectives.BATCH, nodes)
    learned = 3 * objectives.BATCHES * batch * bits * (count + sum(objectives.LEVELS))
    settled = Work(products=nodes * count * bits, fired=nodes * bits, calls=config.steps)
    epoch = settled + Work(products=learned, activated_back=4 * objectives.BATCHES * batch * bits)
    dense, features = 4.0 * nodes * graph.num_features, 8.0 * graph.features.nnz if graph.is_sparse else 0.0
    keeps = components.keeps_matrix(nodes, graph.num_features, count)
    kept = dense if keeps else 4.0 * nodes * (count + components.OVERSAMPLED)
    standing = (features or dense) * 3 + 8.0 * (graph.num_edges + nodes) + 4.0 * nodes * count * 3
    asking = 4.0 * nodes * (2 * sources.DIRECTIONS + 3 * sources.TRAVELLING) + 12.0 * (graph.num_edges + nodes)
    working = max(3 * kept, 4.0 * nodes * bits * 2, CHUNK * 32.0 * nodes, asks * asking)
    return _expected(graph, model, machine, standing + working, prepare, epoch.seconds(rates), settled.seconds(rates))


def count_components(graph: Graph, count: int, bits: int, *, asks: bool) -> Work:
    """The work of fitting ``count`` components and the rotations that start ``bits`` channels.

    With ``asks`` hidden edges are asked; what it takes if half of the bits then read something else is not counted.
    """
    nodes, width = graph.num_nodes, graph.num_features
    stored = graph.features.nnz if graph.is_sparse else nodes * width
    guesses, rounds = count + components.OVERSAMPLED, components.POWER_ITERATIONS + 1
    measured = width if width <= components.EXACT_COLUMNS else components.SKETCH
    moved, products, entries = measured + count, 0.0, stored * (count + measured * (measured < width))
    if components.keeps_matrix(nodes, width, count):
        moved += width * (measured < width)
        products += 2 * rounds * nodes * width * guesses
    else:
        moved += 2 * rounds * guesses
        entries += 2 * rounds * stored * guesses
    sizes = [min(size, bits) for size in closed_forms.ROTATED]
    rotated = min(nodes, closed_forms.FIT_NODES) * bits * sum(size**2 for size in sizes) / sum(sizes)
    products += 2 * closed_forms.ITERATIONS * rotated
    if not graph.is_sparse:
        products, entries = products + entries, 0.0
    # Hidden edges are asked of features that travel shortly and far, and of a sketch of the structure.
    hops = components.PPR.hops + sources.SMOOTH.hops + structural.HOPS + components.FAR.hops
    travelled = float((graph.num_edges + nodes) * (moved * components.PPR.hops + asks * sources.TRAVELLING * hops))
    far = nodes * components.CHUNK > CHUNK_FLOATS
    return Work(
        edges=0.0 if far else travelled, edges_far=travelled if far else 0.0, products=products, entries=entries
    )


def keeps_propagated(model: SpikeGCL, graph: Graph) -> bool:
    """Whether training keeps P X of the clean graph."""
    bytes_ = graph.num_nodes * graph.num_features * 4
    return model.encoder.propagates_first and bytes_ <= views.KEEP_PROPAGATED


def count_work(model: SpikeGCL, graph: Graph, *, backward: bool) -> Work:
    """The work of one epoch (``backward``: two views, forward and back) or of one embedding (one view, forward)."""
    total = Work()
    kept = keeps_propagated(model, graph)
    for first, steps in model.chunks(graph.num_nodes):
        if not backward:
            total += _chunk(model, graph, first, steps, backward=False, kept=kept)
            continue
        total += _chunk(model, graph, first, steps, backward=True, kept=kept and model.config.dropout == 0)
        total += _chunk(model, graph, first, steps, backward=True, kept=False)
    return total


def _chunk(model: SpikeGCL, graph: Graph, first: int, steps: int, *, backward: bool, kept: bool) -> Work:
    """One chunk of steps of one view."""
    encoder, nodes = model.encoder, graph.num_nodes
    matrices, layers = len(encoder.first.weights()), len(encoder.shared)
    entries = graph.num_edges + (0 if encoder.operator_kind == "mean" else nodes)
    width, columns = int(encoder.groups.bounds[first + steps] - encoder.groups.bounds[first]), steps * model.channels
    both = 2 if backward else 1
    moved = both * layers * columns  # columns that travel along the edges
    products = (3 if backward else 1) * layers * columns * model.channels
    gathered = sparse = 0.0
    values = graph.features.nnz * width / graph.num_features if graph.is_sparse else float(nodes * width)
    if encoder.propagates_first:
        moved += 0 if kept else width
        products += both * width * model.channels
        gathered = values if not kept or matrices == 2 else 0.0
    else:
        moved += both * columns
        sparse = both * values * model.channels if graph.is_sparse else 0.0
        products += 0 if graph.is_sparse else both * width * model.channels
        gathered = 0.0 if graph.is_sparse or encoder.kind == "linear" else values  # linear reads columns in place
    attended = both * steps * (layers + 1) * entries if encoder.kind == "gat" else 0
    far = nodes * columns > CHUNK_FLOATS
    travelled = float(entries * moved)
    return Work(
        edges=0.0 if far else travelled,
        edges_far=travelled if far else 0.0,
        products=matrices * nodes * products,
        activated=nodes * columns * layers,
        activated_back=nodes * columns * layers * (both - 1),
        fired=nodes * columns,
        fired_back=nodes * columns * (both - 1),
        gathered=gathered,
        entries=matrices * sparse,
        attended=attended,
        calls=both,
    )


def count_bytes(model: SpikeGCL, graph: Graph) -> float:
    """Bytes of the arrays that are alive together at the worst moment, beyond the libraries."""
    nodes, encoder = graph.num_nodes, model.encoder
    dense = 4.0 * nodes * graph.num_features
    features = 8.0 * graph.features.nnz if graph.is_sparse else dense
    adjacency = 4.0 * (graph.num_edges + nodes)
    # The graph, its features by column, indices and weights and values of both views, parameters with their gradients
    # and two moments and the copy that is kept.
    standing = 2 * features + 2 * adjacency + 4 * adjacency + (nodes * 24)
    standing += 5 * 4 * sum(p.numel() for p in model.parameters())
    standing += dense if keeps_propagated(model, graph) else 0.0
    first, steps = next(model.chunks(nodes))
    width, columns = int(encoder.groups.bounds[first + steps] - encoder.groups.bounds[first]), steps * model.channels
    # Per view the propagated features and two activations a layer wait for the backward pass; three more are in work.
    waiting = columns * 2 * max(1, len(encoder.shared)) + (width if encoder.propagates_first else 0)
    training_ = 4.0 * nodes * (2 * waiting + 3 * columns + 4 * model.channels)
    if encoder.kind == "gat":  # scores, weights and index arrays of every edge, for each step and layer in flight
        training_ += 2 * steps * (len(encoder.shared) + 1) * 8 * adjacency
    # The moments of dense features are taken in double precision; sparse ones are copied once more.
    preparing = 8.0 * nodes * graph.num_features if not graph.is_sparse else 2 * features
    # Bits one byte each for firing rates; with labels also the projection floor, some of its columns in work as eight
    # arrays of floats, their projection as three of doubles.
    judging = float(nodes * model.bits)
    if graph.labels is not None:
        judging += CHUNK * (8 * 4 * nodes + 3 * 8 * graph.num_features)
    return standing + max(training_, preparing, judging)


# ---------------------------------------------------------------------------------------------------------- the probe


def probe_process() -> tuple[float, float]:
    """``startup`` and ``resident_mb`` of a :class:`Machine`; to be asked before a graph is in memory."""
    began = time.perf_counter()
    training.train(_random_graph(np.random.default_rng(0), 64, 32), Config(steps=2, epochs=1, threshold=1e-3))
    return min(time.perf_counter() - began, LOADING_SECONDS), psutil.Process().memory_info().rss / MB


def probe_machine(seconds: float = PROBE_SECONDS, process: tuple[float, float] | None = None) -> Machine:
    """Measure this machine for about ``seconds``, and first the process, unless :func:`probe_process` did."""
    startup, resident = process or probe_process()
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    share = seconds / 10

    near, far = _random_graph(rng, SMALL, 32), _random_graph(rng, LARGE, 1)
    operator = make_operator(near)
    floats = SMALL * 2 * CHANNELS
    x = torch.randn(SMALL, 2 * CHANNELS, requires_grad=True, generator=generator)
    x_far = torch.randn(LARGE, CHANNELS, generator=generator)
    far_operator = make_operator(far)
    weight = torch.randn(2 * CHANNELS, CHANNELS, requires_grad=True, generator=generator)
    ones, zero = torch.ones(SMALL), torch.zeros(2 * CHANNELS)
    grad = torch.randn(SMALL, 2 * CHANNELS, generator=generator)
    features, sparse = Features(near), Features(_random_graph(rng, SMALL, 512, density=0.02))
    columns = Columns(np.arange(32), 1, 0.5)
    groups = make_groups(_random_graph(rng, SMALL, 512, density=0.02), 2)
    wide = torch.randn(512, CHANNELS, generator=generator)
    neuron, tau, rest = Neuron(), torch.tensor(1.0), torch.zeros(SMALL, CHANNELS)
    head = torch.randn(CHANNELS, generator=generator)

    def forward_activation() -> torch.Tensor:
        return activate(Affine(x * 1, ones, zero, zero), "elu", [1, 2], 0.5, CHANNELS)[0]

    def forward_neuron() -> torch.Tensor:
        return score_spikes(Affine(x * 1, ones, zero, zero), rest, neuron, tau, head, 1)[0]

    def forward_attention() -> torch.Tensor:
        part = x[:, :CHANNELS].contiguous()
        return attend(operator, part, part[:, 0], part[:, 1])

    def linear() -> None:
        block_linear(x, weight, [0, CHANNELS, 2 * CHANNELS]).backward(grad)

    copied = _seconds(lambda: x * 1, share)
    activated = _seconds(forward_activation, share) - copied
    activated_both = _seconds(lambda: forward_activation().backward(grad), share) - copied
    fired = _seconds(forward_neuron, share) - copied
    fired_both = _seconds(lambda: forward_neuron().backward(grad[:, :2]), share) - copied
    small, large = len(operator.values), len(far_operator.values)
    edges = _seconds(lambda: propagate(operator, x.detach()), share) / (small * 2 * CHANNELS)
    attention = _seconds(lambda: forward_attention().backward(grad[:, :CHANNELS]), share / 2)
    entries = sparse.sparse.nnz * CHANNELS
    rates = Work(
        edges=edges,
        edges_far=_seconds(lambda: propagate(far_operator, x_far), share) / (large * CHANNELS),
        products=_seconds(linear, share) / (3 * floats * CHANNELS),
        activated=activated / floats,
        activated_back=max(activated_both - activated, 0.0) / floats,
        fired=fired / floats,
        fired_back=max(fired_both - fired, 0.0) / floats,
        gathered=_seconds(lambda: features.gather(columns, 0, 32), share / 2) / (SMALL * 32),
        entries=_seconds(lambda: group_linear(sparse, Columns(np.arange(512)), groups, 0, 2, wide), share / 2)
        / entries,
        attended=max(attention - 3 * edges * small * CHANNELS, 0.0) / (2 * small),
        calls=_call_seconds(_random_graph(rng, 64, 32), share),
    )
    return Machine(rates, startup, resident)


def _call_seconds(tiny: Graph, budget: float) -> float:
    """Seconds of one chunk, forward or back, in which there is nothing to compute."""
    objective = Margin(session.Session(tiny, Config(steps=2, epochs=1, threshold=1.0), 0))
    return _seconds(lambda: objective.epoch(1), budget) / 4


def _random_graph(rng: np.random.Generator, nodes: int, width: int, density: float = 1.0) -> Graph:
    """A regular graph with shuffled nodes: memory is read in random order, and no edge occurs twice."""
    offsets = rng.choice(np.arange(1, nodes // 2), DEGREE // 2, replace=False)
    node = np.arange(nodes)
    shuffled = rng.permutation(nodes)
    edges = [np.concatenate([shuffled[(node + offset) % nodes] for offset in pair]) for pair in (0 * offsets, offsets)]
    features = rng.random((nodes, width), dtype=np.float32)
    return build_graph(np.stack(edges), np.where(features < density, features, 0), num_nodes=nodes)


def _seconds(call: Callable[[], object], budget: float) -> float:
    """Seconds of a call, repeated within the budget (at least five times) after one call to warm up.

    The lower quartile: whatever else runs for a moment makes a call slower by any factor, and never faster.
    """
    call()
    laps: list[float] = []
    began = time.perf_counter()
    while len(laps) < 5 or time.perf_counter() - began < budget:
        start = time.perf_counter()
        call()
        laps.append(time.perf_counter() - start)
    return float(np.quantile(laps, 0.25))
