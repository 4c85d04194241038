"""Operations of one pass over a graph, and what they cost by a named rule; the same rules for every method.

A method describes itself once as :class:`Operations` (layers with their multiply-accumulates and spikes); a rule says
which of these are charged. With E_mac the energy of a multiply-accumulate and E_sop that of a spike:

    paper-spikes   E_sop * spikes                          only this regenerates the row printed in the paper
    paper-full     E_sop * spikes + E_mac * encoding       the paper's formula as written: encoding = T N d
    all-ops        E_sop * spikes + E_mac * (products + aggregation)

Networks without spikes pay E_mac * (products + aggregation) under every rule, as in the paper's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spikegcl.bits import ones_per_bit, popcount
from spikegcl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.model import SpikeGCL

RULES = ("paper-spikes", "paper-full", "all-ops")
WORD = 64  # 1-bit products that one multiply-accumulate pays for, by the paper's formula


@dataclass(frozen=True)
class Constants:
    """Joules per multiply-accumulate and per spike; the defaults are the paper's (45 nm figures)."""

    mac: float = 4.6e-12
    sop: float = 3.7e-12

    def __post_init__(self) -> None:
        if not (0 <= self.mac < float("inf") and 0 <= self.sop < float("inf")):
            raise ConfigError(f"energies must be finite and not negative, got mac={self.mac}, sop={self.sop} joules")


PAPER = Constants()


@dataclass(frozen=True)
class Layer:
    """What one layer does in one pass over the graph.

    ``products`` are multiply-accumulates with weights (fractions of one for 1-bit words), ``aggregation`` those along
    edges, ``encoding`` what the paper's formula charges for turning features into currents, ``spikes`` the ones fired.
    """

    name: str
    products: float = 0
    aggregation: float = 0
    encoding: float = 0
    spikes: int = 0


@dataclass(frozen=True)
class Operations:
    """All layers of a method on one graph. ``spiking`` says whether the paper's rule for spiking networks applies."""

    layers: tuple[Layer, ...]
    spiking: bool = False
    spikes_per_step: tuple[int, ...] = ()

    @property
    def macs(self) -> float:
        """Every multiply-accumulate of the pass."""
        return sum(layer.products + layer.aggregation for layer in self.layers)

    @property
    def spikes(self) -> int:
        return sum(layer.spikes for layer in self.layers)


def energy(operations: Operations, rule: str = "all-ops", constants: Constants = PAPER) -> float:
    """Joules of one pass by a rule.

    >>> round(1e3 * energy(Operations((Layer("neuron", spikes=13752 * 25 * 64),), spiking=True), "paper-spikes"), 4)
    0.0814
    """
    return sum(_layer_energy(layer, operations.spiking, rule, constants) for layer in operations.layers)


def energies(operations: Operations, constants: Constants = PAPER) -> dict[str, float]:
    """Joules of one pass by every rule."""
    return {rule: energy(operations, rule, constants) for rule in RULES}


def table(operations: Operations, constants: Constants = PAPER) -> list[dict[str, Any]]:
    """One row a layer: its counts, and its joules by every rule. The rows add up to :func:`energies`."""
    return [
        {
            "layer": layer.name,
            "products": layer.products,
            "aggregation": layer.aggregation,
            "encoding": layer.encoding,
            "spikes": layer.spikes,
            "joules": {rule: _layer_energy(layer, operations.spiking, rule, constants) for rule in RULES},
        }
        for layer in operations.layers
    ]


def _layer_energy(layer: Layer, spiking: bool, rule: str, constants: Constants) -> float:
    if rule not in RULES:
        raise ConfigError(f"unknown energy rule {rule!r}; choose one of {', '.join(RULES)}")
    spikes = constants.sop * layer.spikes
    work = constants.mac * (layer.products + layer.aggregation)
    if not spiking or rule == "all-ops":
        return work + spikes
    return spikes + (constants.mac * layer.encoding if rule == "paper-full" else 0.0)


# ----------------------------------------------------------------------------------------------- layers of a method


def dense_layer(name: str, nodes: int, edges: int, width_in: int, width_out: int, columns: int | None = None) -> Layer:
    """A full-precision graph layer: N d_in d_out to project, and one operation per edge and moved column.

    ``edges`` are the stored entries of the adjacency (directed edges, plus N where there are self-loops); ``columns``
    (default d_out) are those that travel along them: d_in where the graph is applied before the weights.
    """
    return Layer(name, nodes * width_in * width_out, edges * (width_out if columns is None else columns))


def binary_layer(name: str, nodes: int, edges: int, width_in: int, width_out: int) -> Layer:
    """A 1-bit graph layer by the paper's formula: N d_in d_out / 64 + 2 N d_out (two scalings) + |E| d_out."""
    return Layer(name, nodes * width_in * width_out / WORD + 2 * nodes * width_out, edges * width_out)


def layers_of(
    widths: Sequence[int], nodes: int, edges: int, kind: Callable[..., Layer] = dense_layer
) -> tuple[Layer, ...]:
    """Graph layers one after the other, from each of the ``widths`` to the next."""
    return tuple(kind(f"layer {number}", nodes, edges, *pair) for number, pair in enumerate(pairwise(widths), start=1))


def component_layers(
    nodes: int, moved: int, features: int, components: int, *, unit: bool, suffix: str = ""
) -> list[Layer]:
    """Propagated features projected to components, where moving a column over all hops takes ``moved`` operations.

    With ``unit`` rows every column (or the sketch of wide features) is propagated once more, for the lengths. Names end
    in ``suffix``.
    """
    from spikegcl.components import EXACT_COLUMNS, SKETCH

    layers = [Layer(f"components{suffix}", nodes * features * components, moved * components, nodes * features)]
    if unit and features > EXACT_COLUMNS:
        layers.insert(0, Layer(f"row lengths{suffix}", nodes * features * SKETCH, moved * SKETCH))
    elif unit:
        layers.insert(0, Layer(f"row lengths{suffix}", 0, moved * features))
    return layers


def count_spikes(packed: NDArray[np.uint8], steps: int, channels: int) -> tuple[int, ...]:
    """Spikes of each step over all nodes, from packed codes (uint8, N x ceil(steps * channels / 8))."""
    if channels % 8 == 0:
        width = channels // 8
        return tuple(int(popcount(packed[:, t * width : (t + 1) * width]).sum()) for t in range(steps))
    per_bit = ones_per_bit(packed, steps * channels)
    return tuple(per_bit.reshape(steps, channels).sum(1).tolist())


def count(model: SpikeGCL, graph: Graph, packed: NDArray[np.uint8]) -> Operations:
    """The operations of the pass that turned ``graph`` into ``packed`` (its codes by ``model``)."""
    fired = count_spikes(packed, model.steps, model.channels)
    return count_pass(model, graph.num_nodes, graph.num_edges, fired)


def count_pass(model: SpikeGCL, nodes: int, edges: int, fired: tuple[int, ...]) -> Operations:
    """The operations of a pass over N ``nodes`` and ``edges`` (directed) in which step t fires ``fired[t]`` spikes.

    With c_t columns in group t, M stored entries of the adjacency and H channels:

        layer 1      sum_t N c_t H products (twice for SAGE), M per column that travels
        layer l > 1  N T H^2 products, T M H along edges
        neuron       N T H (one charge a step and channel), and the spikes that were fired

    In layer 1 the pass moves the c_t columns of the groups along the edges, or the H columns of their products,
    whichever is fewer in all. Zeros in a bag of words are counted like other numbers.
    """
    from spikegcl.structural import HOPS as SKETCH_HOPS

    encoder = model.encoder
    groups, channels, steps = encoder.groups, model.channels, model.steps
    matrices = len(encoder.first.weights())
    entries = edges + (0 if encoder.operator_kind == "mean" else nodes)
    moved = len(groups.order) if encoder.propagates_first else steps * channels
    # Attention scores: two dot products a node, and one weighting an edge beyond the weighted sum itself.
    attention = steps * (2 * nodes * channels + entries) if encoder.kind == "gat" else 0
    width = len(groups.order)
    layers = []
    if model.inputs is not None:
        for number, part in enumerate(model.inputs.parts):
            if part.structural:
                layers.append(Layer("sketch", 0, entries * SKETCH_HOPS * (len(part.directions) - 1)))
            along, suffix = entries * part.propagation.hops, f" {number + 1}" if number else ""
            layers += component_layers(nodes, along, *part.directions.shape, unit=part.unit, suffix=suffix)
        moved = 0
    encoding = steps * nodes * groups.columns
    layers += [Layer("layer 1", matrices * nodes * width * channels + attention, entries * moved, encoding)]
    layers += [
        Layer(f"layer {number}", matrices * nodes * steps * channels**2 + attention, steps * entries * channels)
        for number in range(2, len(encoder.shared) + 2)
    ]
    layers.append(Layer("neuron", nodes * steps * channels, spikes=sum(fired)))
    return Operations(tuple(layers), spiking=True, spikes_per_step=fired)


def measure(model: SpikeGCL, graph: Graph, columns: Sequence[str] | None = None) -> Operations:
    """Embed ``graph`` once and count what that took. ``columns`` are the names of the model's feature columns."""
    from spikegcl.training import embed_graph

    return count(model, graph, embed_graph(model, graph, columns))
