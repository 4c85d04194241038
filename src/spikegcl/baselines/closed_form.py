"""Codes without training, at any number of bits: the floors that learned codes have to beat.

    untrained       the SpikeGCL encoder as initialised, its batch-norm statistics moved by gradient-free passes
    projection      sign of a Gaussian projection of twice propagated, standardised features
    pca-projection  the same of their principal components
    itq             ITQ rotations of the components
    ppr-itq         ITQ rotations of the components of features propagated by personalised PageRank

Thresholds are the medians of the columns, except that a neuron has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from spikegcl import closed_forms, floors
from spikegcl.baselines import Fitted, Method, Shape, spikegcl
from spikegcl.closed_forms import ClosedForm
from spikegcl.components import Propagation, component_count, fit_components
from spikegcl.config import Config, preset
from spikegcl.energy import Layer, Operations, component_layers, count
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.training import Epoch

# ---------------------------------------------------------------------------------------------------- untrained


def fit_untrained(
    graph: Graph,
    settings: Config,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    session = floors.untrained_session(graph, settings, seed, device)
    codes = session.embed()
    clock.lap("embed")
    operations = count(session.model, graph, codes)
    return Fitted(
        session.config,
        codes=codes,
        bits=session.model.bits,
        spikes=operations.spikes_per_step,
        operations=operations,
        seconds=clock.seconds,
        notes=(f"gradient-free passes: {settings.epochs if settings.batch_norm else 0}",),
    )


def untrained_preset(name: str, dataset: str) -> Config:
    """The paper's encoder by default, on any graph; else the presets of SpikeGCL."""
    return preset("contrastive" if name == "default" else name, dataset)


# --------------------------------------------------------------------------------------------------- projection


@dataclass(frozen=True)
class ProjectionSettings(Settings):
    bits: int = 256  # half of a common float width, an eighth of its bytes at one bit each

    RANGES: ClassVar = {"bits": (1, 65536)}


def fit_projection(
    graph: Graph,
    settings: ProjectionSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    codes = floors.projection(graph, settings.bits, seed)
    clock.lap("embed")
    return Fitted(settings, codes=codes, bits=settings.bits, seconds=clock.seconds)


def projection_parameters(shape: Shape, settings: ProjectionSettings) -> int:
    """Directions d x bits, mean and deviation of every column, thresholds."""
    return shape.features * (settings.bits + 2) + settings.bits


def projection_operations(shape: Shape, settings: ProjectionSettings, spikes: tuple[int, ...] = ()) -> Operations:
    products = shape.nodes * shape.features * settings.bits
    return Operations((Layer("projection", products, 2 * shape.entries * settings.bits),))


# ------------------------------------------------------------------------------------------ components, rotated


@dataclass(frozen=True)
class ClosedFormSettings(Settings):
    """Settings of ``ppr-itq``; the other two derive from it."""

    bits: int = 256  # as for `projection`
    components: int = 0  # 0: as many as bits, at least 128, at most the columns
    scaling: str = "auto"  # by the features: see scaling.choose_scaling
    hops: int = 10  # after ten hops 0.85^10 = 20 % of the walk is left
    restart: float = 0.15  # the customary value; 0 gives P^hops
    unit: bool = True  # rows to unit length before and after the components
    rotation: str = "itq"
    block: int = 64  # components and bits of one rotation; more bits come from further rotations of them
    iterations: int = closed_forms.ITERATIONS

    CHOICES: ClassVar = {"scaling": ("auto", "words", "weighted", "standard"), "rotation": ("itq", "gaussian")}
    RANGES: ClassVar = {
        "bits": (1, 65536),
        "components": (0, 65536),
        "hops": (0, 1000),
        "restart": (0, 1),
        "block": (1, 65536),
        "iterations": (0, 1000),
    }


@dataclass(frozen=True)
class TwoHopSettings(ClosedFormSettings):
    """Settings of ``itq``."""

    scaling: str = "standard"  # as for `projection`
    hops: int = 2  # what a two-layer GCN sees
    restart: float = 0.0
    unit: bool = False


@dataclass(frozen=True)
class PCAProjectionSettings(TwoHopSettings):
    """Settings of ``pca-projection``."""

    components: int = 128  # more would let noise into every bit: at 512 bits of Cora 86 % with 128, 82 % with 512
    rotation: str = "gaussian"


def settle(shape: Shape, settings: ClosedFormSettings) -> ClosedFormSettings:
    """The number of components this graph can have."""
    wanted = settings.components or component_count(settings.bits)
    return settings.replace(components=min(wanted, shape.features, shape.nodes - 1))


def fit_closed_form(graph: Graph, settings: ClosedFormSettings, seed: int) -> ClosedForm:
    """Components, rotation and medians of ``graph``."""
    components, scores = fit_components(
        graph,
        settings.components,
        propagation=Propagation(settings.hops, settings.restart),
        scaling=settings.scaling,
        unit=settings.unit,
        seed=seed,
    )
    if settings.rotation == "itq":
        rotation = closed_forms.fit_itq(
            scores, settings.bits, seed=seed, iterations=settings.iterations, blocks=(settings.block,)
        )
    else:
        rotation = closed_forms.gaussian_rotation(settings.components, settings.bits, seed)
    return ClosedForm(components, rotation, closed_forms.fit_medians(rotation.apply(scores)))


def fit_components_method(
    graph: Graph,
    settings: ClosedFormSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    settled = settle(Shape.of(graph), settings)
    fitted = fit_closed_form(graph, settled, seed)
    clock.lap("train")
    codes = fitted.apply(graph)
    clock.lap("embed")
    notes = (f"components: {settled.components}", f"features: {fitted.components.scaling.kind}")
    return Fitted(settled, codes=codes, bits=settled.bits, seconds=clock.seconds, notes=notes)


def components_parameters(shape: Shape, settings: ClosedFormSettings) -> int:
    """Numbers that are kept for new nodes: scaling 2 d + 1, components d k + 2 k + 1, rotation, thresholds."""
    settled = settle(shape, settings)
    scaling = 2 * shape.features + 1
    components = (shape.features + 2) * settled.components + 1
    return scaling + components + _rotated(settled) * settled.bits + settled.bits


def components_operations(shape: Shape, settings: ClosedFormSettings, spikes: tuple[int, ...] = ()) -> Operations:
    settled = settle(shape, settings)
    moved = settled.hops * shape.entries
    layers = component_layers(shape.nodes, moved, shape.features, settled.components, unit=settled.unit)
    return Operations((*layers, Layer("rotation", shape.nodes * _rotated(settled) * settled.bits)))


def _rotated(settled: ClosedFormSettings) -> int:
    """Components that one bit looks at."""
    if settled.rotation == "gaussian":
        return settled.components
    return min(settled.block, settled.bits, settled.components)


METHODS = (
    Method(
        "untrained", "SpikeGCL, untrained", Config, fit_untrained, spikegcl.parameters, spikegcl.operations,
        spiking=True, binary=True, preset=untrained_preset,
    ),
    Method(
        "projection", "Random projection", ProjectionSettings, fit_projection, projection_parameters,
        projection_operations, binary=True,
    ),
    Method(
        "pca-projection", "Random projection of components", PCAProjectionSettings, fit_components_method,
        components_parameters, components_operations, binary=True,
    ),
    Method(
        "itq", "ITQ", TwoHopSettings, fit_components_method, components_parameters, components_operations, binary=True
    ),
    Method(
        "ppr-itq", "PageRank and ITQ", ClosedFormSettings, fit_components_method, components_parameters,
        components_operations, binary=True,
    ),
)  # fmt: skip
