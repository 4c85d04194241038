"""SpikeGCL = encoder + spiking neuron + scoring head + margin ranking loss; knows nothing of training."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.encoder import Encoder, View
from spikegcl.fused import pack_spikes, score_spikes
from spikegcl.neurons import Neuron, SpikingNeuron

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spikegcl.config import Config
    from spikegcl.graph import Graph
    from spikegcl.groups import Groups
    from spikegcl.sources import Sources

# Floats of one activation tensor (N x K*H) that are worth keeping in flight: small graphs take many steps at once to
# amortise calls, large ones one step at a time. Between 2^20 and 2^23 the speed hardly changes; 2^21 floats are 8 MB.
CHUNK_FLOATS = 2**21


class SpikeGCL(nn.Module):
    """Turns a view of a graph into scores (training) or packed bits (codes).

    Bits per node = steps * channels; bit t*H + h is the spike of channel h at step t.
    """

    def __init__(self, config: Config, groups: Groups, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.inputs: Sources | None = None  # what makes the encoder's inputs from a graph, unless its features are
        self.encoder = Encoder(config, groups, seed)
        self.neuron = SpikingNeuron(
            Neuron(config.neuron, config.threshold, config.reset, config.surrogate, config.alpha),  # type: ignore[arg-type]
            config.tau,
        )
        bound = 1 / math.sqrt(config.channels)  # torch's default for a linear layer
        rng = noise.generator(seed, "head")
        self.head = nn.Parameter(torch.empty(config.head_width, config.channels).uniform_(-bound, bound, generator=rng))

    @property
    def steps(self) -> int:
        return self.encoder.groups.steps

    @property
    def channels(self) -> int:
        return self.encoder.channels

    @property
    def bits(self) -> int:
        return self.steps * self.channels

    @property
    def num_features(self) -> int:
        """Feature columns of the graphs it embeds."""
        return self.encoder.groups.columns if self.inputs is None else self.inputs.num_features

    def prepare(self, graph: Graph, blocks: int | None = None) -> Graph:
        """The graph with what the encoder reads in place of its features.

        With ``blocks`` a propagation of features goes through the graph in so many blocks of rows.
        """
        return graph if self.inputs is None else replace(graph, features=self.inputs.apply(graph, blocks), columns=None)

    def chunks(self, nodes: int) -> Iterator[tuple[int, int]]:
        """Step ranges (first, count) computed side by side: whole blocks, as many as CHUNK_FLOATS allows."""
        block = min(self.config.block, self.steps)
        count = block * max(1, CHUNK_FLOATS // (nodes * self.channels * block))
        for first in range(0, self.steps, count):
            yield first, min(count, self.steps - first)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, batch norm uses its running statistics and does not move them; the mode is restored after."""
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    def rest(self, view: View) -> Tensor:
        """The membrane at rest, N x H."""
        return self.head.new_zeros(view.operator.num_nodes, self.channels)

    def scores(
        self, view: View, first: int, steps: int, membrane: Tensor, norms: list[float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """g(S_t) of every node for a range of steps: N x steps, and the membrane after it.

        The head maps spikes to ``head_width`` outputs and sums them, which is one vector: (1^T W) s. If ``norms`` is a
        list, the backward pass appends the norm of the loss's gradient at each step's current.
        """
        current = self.encoder.currents(view, first, steps)
        if norms is not None:
            # Channels first, then nodes: four times faster than both at once, and rounding does not build up.
            by_step = (-1, steps, self.channels)
            current.x.register_hook(lambda grad: norms.extend(grad.view(by_step).norm(dim=2).norm(dim=0).tolist()))
        block = min(self.config.block, self.steps)
        return score_spikes(current, membrane, self.neuron.neuron, self.neuron.tau, self.head.sum(0), block)

    @torch.no_grad()
    def embed(self, view: View) -> Tensor:
        """Codes of every node as packed bits (uint8, N x ceil(bits / 8)), little-endian within bytes."""
        packed = torch.zeros(view.operator.num_nodes, (self.bits + 7) // 8, dtype=torch.uint8, device=self.head.device)
        membrane, neuron, tau = self.rest(view), self.neuron.neuron, self.neuron.tau
        with self.frozen():
            for first, steps in self.chunks(view.operator.num_nodes):
                current = self.encoder.currents(view, first, steps)
                membrane = pack_spikes(current, membrane, neuron, tau, first * self.channels, packed)
        return packed


def margin_loss(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Sum over steps of mean_u max(0, g(z_u) - g(z_u^-) + m), the paper's sign. Inputs N x K."""
    return torch.relu(positive - negative + margin).mean(0).sum()
