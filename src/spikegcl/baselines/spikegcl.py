"""SpikeGCL as a method among others: a thin adapter over :mod:`spikegcl.training`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.config import Config, fit_to_graph, preset
from spikegcl.energy import Operations, count, count_pass
from spikegcl.graph import build_graph
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL
from spikegcl.training import train

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch


def fit(
    graph: Graph,
    settings: Config,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    trained = train(graph, settings, seed=seed, split=split, on_epoch=on_epoch, device=device)
    operations = count(trained.model, graph, trained.codes)
    return Fitted(
        trained.config,
        codes=trained.codes,
        bits=trained.model.bits,
        history=trained.history,
        epoch=trained.epoch,
        select=trained.config.select,
        spikes=operations.spikes_per_step,
        operations=operations,
        seconds=trained.seconds,
        trained=trained,
    )


def parameters(shape: Shape, settings: Config) -> int:
    return sum(parameter.numel() for parameter in _model(shape, settings).parameters())


def operations(shape: Shape, settings: Config, spikes: tuple[int, ...] = ()) -> Operations:
    """Of contiguous groups; clustered ones have other sizes."""
    model = _model(shape, settings)
    return count_pass(model, shape.nodes, shape.edges, spikes or (0,) * model.steps)


def _model(shape: Shape, settings: Config) -> SpikeGCL:
    """The model a graph of this shape would get."""
    columns = build_graph(np.zeros((2, 0), int), np.zeros((1, shape.features)))
    settled = fit_to_graph(settings, columns)
    return SpikeGCL(settled, make_groups(columns, settled.steps))


METHOD = Method(
    "spikegcl", "SpikeGCL", Config, fit, parameters, operations, spiking=True, binary=True, preset=preset
)  # fmt: skip
