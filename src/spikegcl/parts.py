"""Graphs in parts: cut into balanced pieces, each loaded with the surroundings that its nodes' codes depend on.

A current after L propagations depends on nodes up to L edges away. A part therefore comes with this halo, and every
row that counts is the whole graph's: all its entries in their order, normalised by the degrees of the whole graph. The
spikes of a node do not depend on how the graph was cut: embedding by parts is embedding in one piece, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from spikegcl import kernels, world
from spikegcl.augment import clean_view
from spikegcl.errors import ConfigError
from spikegcl.features import ColumnMoments, Features
from spikegcl.propagate import Operator, cut_operator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.graph import Graph
    from spikegcl.model import SpikeGCL

METIS_EDGES = 2**25  # directed edges METIS gets to see: it copies them several times, about 100 bytes each
PASSES = 3  # of the streaming partitioner: the first places nodes, the others move them with all neighbours placed
SLACK = 1.05  # how much larger than the average a streamed part may become


def partition(graph: Graph, count: int, hops: int = 1) -> NDArray[np.int32]:
    """The part (0 to ``count`` - 1) of every node (N): parts of nearly equal size with few edges between them.

    METIS cuts graphs of up to ``METIS_EDGES`` directed edges, a streaming partitioner larger ones. For encoders
    that look no edge away (``hops`` 0) parts are ranges of nodes.
    """
    if not 1 <= count <= graph.num_nodes:
        raise ConfigError(f"{graph.num_nodes} nodes cannot be cut into {count} parts; choose 1 to {graph.num_nodes}")
    if count == 1 or hops == 0:
        return (np.arange(graph.num_nodes) * count // graph.num_nodes).astype(np.int32)
    member = metis(graph, count) if graph.num_edges <= METIS_EDGES else stream(graph, count)
    sizes = np.bincount(member, minlength=count)
    while (sizes == 0).any():  # tiny graphs: the largest part gives a node
        moved = np.flatnonzero(member == sizes.argmax())[0]
        member[moved] = np.flatnonzero(sizes == 0)[0]
        sizes = np.bincount(member, minlength=count)
    return member


def metis(graph: Graph, count: int) -> NDArray[np.int32]:
    """Parts by METIS (Karypis and Kumar, 1998), which is deterministic."""
    try:
        import pymetis
    except ImportError:
        raise ConfigError("cutting a graph into parts needs pymetis; pip install 'spikegcl[scale]'") from None
    adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
    return np.array(pymetis.part_graph(count, adjacency=adjacency).vertex_part, np.int32)


def stream(graph: Graph, count: int) -> NDArray[np.int32]:
    """Parts by ``PASSES`` streaming passes over the nodes: memory for N numbers, whatever the edges."""
    member, sizes = np.full(graph.num_nodes, -1, np.int32), np.zeros(count, np.int64)
    capacity = int(np.ceil(SLACK * graph.num_nodes / count))
    for _ in range(PASSES):
        kernels.stream_nodes(graph.indptr, graph.indices, capacity, member, sizes)
    return member


@dataclass(frozen=True, eq=False)
class Part:
    """Some nodes of a graph and all within ``hops`` edges of them.

    ``nodes`` (int64) are positions in the graph: the first ``own`` are the part's, then come those one edge away, two
    edges, and so on. The first ``inner`` of them have all their neighbours here.
    """

    graph: Graph
    nodes: NDArray[np.int64]
    own: int
    inner: int

    def load(
        self, kind: str, device: torch.device | str = "cpu", moments: ColumnMoments | None = None
    ) -> tuple[Operator, Features]:
        """What a view of these nodes is made of; ``moments`` are those of the graph's columns, if known already."""
        operator = cut_operator(self.graph, self.nodes, self.inner, kind, device)
        return operator, Features(self.graph, device, self.nodes, self.nodes, moments)


def take_part(graph: Graph, own: NDArray[np.int64], hops: int) -> Part:
    """The part of the nodes ``own`` (ascending positions) with a halo of ``hops`` edges."""
    nodes, inner = [own], len(own) if hops == 0 else 0
    seen = np.zeros(graph.num_nodes, bool)
    seen[own] = True
    for _ in range(hops):
        inner += len(nodes[-1])
        near = np.zeros(graph.num_nodes, bool)
        kernels.mark_neighbours(graph.indptr, graph.indices, nodes[-1], near)
        nodes.append(np.flatnonzero(near & ~seen))
        seen |= near
    return Part(graph, np.concatenate(nodes), len(own), inner)


def embed_parts(
    model: SpikeGCL, graph: Graph, member: NDArray[np.int32], device: torch.device | str = "cpu"
) -> NDArray[np.uint8]:
    """Codes of ``graph`` (packed), one part after the other; ``member`` (N) is from :func:`partition`.

    Processes share the parts, and each of them gets all codes. What comes before the encoder (inputs = components)
    reaches too far for a halo: it goes through the whole graph in as many blocks of rows as there are parts.
    """
    count = int(member.max()) + 1
    graph, encoder = model.prepare(graph, blocks=count), model.encoder
    packed = np.zeros((graph.num_nodes, (model.bits + 7) // 8), np.uint8)
    for number in world.share(count):
        part = take_part(graph, np.flatnonzero(member == number), encoder.hops)
        view = clean_view(*part.load(encoder.operator_kind, device), encoder.groups)
        packed[part.nodes[: part.own]] = model.embed(view)[: part.own].cpu().numpy()
    world.add_up([torch.from_numpy(packed)])
    return packed
