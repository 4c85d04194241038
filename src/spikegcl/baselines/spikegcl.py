"""SpikeGCL as a method among others: a thin adapter over :mod:`spikegcl.training`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.components import blank_components, component_count
from spikegcl.config import Config, fit_to_graph, preset
from spikegcl.energy import Operations, count, count_pass
from spikegcl.graph import build_graph
from spikegcl.groups import make_groups
from spikegcl.model import SpikeGCL
from spikegcl.sources import Sources
from spikegcl.training import train

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.resume import Checkpoints
    from spikegcl.training import Epoch


def fit(
    graph: Graph,
    settings: Config,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
    checkpoints: Checkpoints | None = None,
) -> Fitted:
    asked = settings.propagation != "auto"
    trained = train(graph, settings, seed=seed, split=split, on_epoch=on_epoch, device=device, checkpoints=checkpoints)
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
        notes=() if trained.model.inputs is None else trained.model.inputs.describe(asked=asked),
        trained=trained,
    )


def parameters(shape: Shape, settings: Config) -> int:
    return sum(parameter.numel() for parameter in _model(shape, settings).parameters())


def operations(shape: Shape, settings: Config, spikes: tuple[int, ...] = ()) -> Operations:
    """Of groups of even sizes; clustered ones have others."""
    model = _model(shape, settings)
    return count_pass(model, shape.nodes, shape.edges, spikes or (0,) * model.steps)


def _model(shape: Shape, settings: Config) -> SpikeGCL:
    """The model a graph of this shape would get, before anything is fitted."""
    settled, width, inputs = fit_to_graph(settings, _columns(shape.features)), shape.features, None
    if settled.inputs == "components":
        wanted = settled.components or component_count(settled.steps * settled.channels)
        width = min(wanted, shape.features, shape.nodes - 1)
        inputs = Sources((blank_components(shape.features, width),), shape.features)
    grouping = "all" if settled.grouping == "all" else "chunk"
    model = SpikeGCL(settled, make_groups(_columns(width), settled.steps, grouping))
    model.inputs = inputs
    return model


def _columns(count: int) -> Graph:
    return build_graph(np.zeros((2, 0), int), np.zeros((1, count)))


METHODS = (
    Method("spikegcl", "SpikeGCL", Config, fit, parameters, operations, spiking=True, binary=True, preset=preset),
    Method(  # the same with one preset, to stand beside the published one in tables
        "compact", "SpikeGCL compact", Config, fit, parameters, operations, spiking=True, binary=True,
        preset=lambda name, dataset: preset("compact", dataset), revision=2,
    ),
)  # fmt: skip


def with_checkpoints(checkpoints: Checkpoints) -> Method:
    """The method, going on from the newest of these checkpoints and writing more."""
    return replace(METHODS[0], fit=partial(fit, checkpoints=checkpoints))
