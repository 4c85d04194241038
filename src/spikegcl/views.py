"""A piece of a graph, the whole or a part, and its views: as it is, with dropout, and corrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from spikegcl import noise
from spikegcl.augment import clean_view, corrupt
from spikegcl.propagate import propagate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spikegcl.config import Config
    from spikegcl.encoder import View
    from spikegcl.features import Features
    from spikegcl.model import SpikeGCL
    from spikegcl.propagate import Operator

# P X of the clean graph is kept over epochs when it is smaller than this (bytes): it saves a product per embedding.
KEEP_PROPAGATED = 2**29


@dataclass(frozen=True, eq=False)
class Piece:
    """Nodes of a graph in memory, ready for ``model``.

    The first ``own`` rows are the piece's: nodes ``nodes`` (own) of the graph; those behind them are their halo.
    """

    model: SpikeGCL
    operator: Operator
    features: Features
    nodes: NDArray[np.int64]
    seed: int

    @property
    def own(self) -> int:
        return len(self.nodes)

    @property
    def config(self) -> Config:
        return self.model.config

    @cached_property
    def clean(self) -> View:
        """The view that is embedded, with P X kept where it will be used and fits."""
        encoder = self.model.encoder
        view = replace(clean_view(self.operator, self.features, encoder.groups), own=self.own)
        count, width = self.features.shape[0], len(encoder.groups.order)
        if encoder.propagates_first and count * width * 4 <= KEEP_PROPAGATED:
            view = replace(view, kept=propagate(self.operator, self.features.gather(view.columns, 0, width)))
        return view

    def positive(self, epoch: int) -> View:
        """The graph with dropout."""
        drop, groups = self.config.dropout, self.model.encoder.groups
        if drop == 0:
            return self.clean
        key = noise.derive(self.seed, epoch, "positive")
        return replace(clean_view(self.operator, self.features, groups, drop=drop, key=key), own=self.own)

    def negative(self, epoch: int) -> View:
        """The corrupted graph."""
        config = self.config
        view = corrupt(
            self.operator, self.features, self.model.encoder.groups, edge_drop=config.edge_drop,
            shuffle=config.shuffle, drop=config.dropout, key=noise.derive(self.seed, epoch, "negative"),
        )  # fmt: skip
        return replace(view, own=self.own)
