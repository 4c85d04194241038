"""Every setting of a run, with the reason for its default; presets; reading and writing TOML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from spikegcl.errors import ConfigError
from spikegcl.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spikegcl.graph import Graph


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the model and its training; the defaults are the preset ``contrastive``.

    The paper's symbol stands in brackets where there is one.
    """

    # Codes: bits per node = steps * channels. 0 lets the graph decide (see `fit_to_graph`).
    bits: int = 0  # if given, it decides: channels are a divisor near `channels`, and steps follow
    steps: int = 0  # [T] time steps = feature groups
    channels: int = 64  # [H] the width every published run uses
    grouping: str = "chunk"  # how columns become groups; the paper's

    # Encoder.
    inputs: str = "features"  # what it reads: the graph's features, or their components after propagation
    components: int = 0  # how many of these from each source; 0: as many as its bits, at least 128
    propagation: str = "auto"  # of features before components are taken: auto asks the edges (sources.py)
    encoder: str = "gcn"  # the paper's basic unit; sage and gat are its ablation; linear for inputs = components
    layers: int = 2  # [L] first per group, the others shared
    activation: str = "elu"  # the authors' choice
    batch_norm: bool = True  # every published command turns it on; keeps firing balanced
    dropout: float = 0.5  # on the input and between layers; the authors' default

    # Neuron.
    neuron: str = "PLIF"  # the paper's
    threshold: float = 0.0  # [V_th]; 0 calibrates it on the first pass to fire at `firing_rate`
    firing_rate: float = 0.4  # target of the calibration: mid-way between silent and saturated (20 to 60 %)
    tau: float = 1.0  # the paper's initial value: no memory; larger values remember
    reset: str = "subtract"  # the paper's
    surrogate: str = "sigmoid"  # the paper's
    alpha: float = 2.0  # the paper's surrogate sharpness

    # Objective and corruption.
    objective: str = "margin"  # the paper's ranking loss; clusters (spikes predict clusters of the components)
    margin: float = 0.0  # [m] the published value on six of seven graphs
    head_width: int = 64  # outputs summed by the scoring head: equivalent to one vector with a scaled step size
    edge_drop: float = 0.2  # share of undirected edges the corrupted view loses; the authors'
    shuffle: bool = True  # whether the corrupted view permutes feature columns

    # Optimisation.
    epochs: int = 20  # the authors' default
    lr: float = 1e-3  # AdamW, the authors'
    weight_decay: float = 1e-2  # AdamW's own default, which the authors keep
    block: int = 1  # [B] steps per block: gradients stop at block borders; B = steps trains end to end
    stop: str = "epochs"  # early stopping: epochs (none), loss, or validation (needs labels)
    patience: int = 5  # epochs without improvement before stopping early
    parts: int = 1  # pieces the graph is cut into, one in memory at a time; batch statistics are then those of a piece
    select: str = "last"  # which epoch's codes are kept: last, or validation (best validation accuracy; needs labels)

    CHOICES: ClassVar = {
        "grouping": ("chunk", "random", "cluster", "all"),
        "inputs": ("features", "components"),
        "propagation": ("auto", "pagerank", "hops", "none"),
        "encoder": ("gcn", "sage", "gat", "linear"),
        "objective": ("margin", "clusters"),
        "activation": ("elu", "relu", "none"),
        "neuron": ("IF", "LIF", "PLIF"),
        "reset": ("zero", "subtract"),
        "surrogate": ("sigmoid", "triangle", "arctan", "multi-gaussian", "superspike", "rectangle"),
        "stop": ("epochs", "loss", "validation"),
        "select": ("last", "validation"),
    }
    RANGES: ClassVar = {
        "bits": (0, 2**20),
        "components": (0, 65536),
        "steps": (0, 65536),
        "channels": (1, 65536),
        "layers": (1, 64),
        "dropout": (0, 0.99),
        "threshold": (0, float("inf")),
        "firing_rate": (0.01, 0.99),
        "tau": (1, float("inf")),
        "alpha": (1e-6, float("inf")),
        "margin": (0, float("inf")),
        "head_width": (1, 65536),
        "edge_drop": (0, 0.99),
        "epochs": (0, 10**9),
        "lr": (0, 1e6),  # AdamW computes with floats of 32 bits
        "weight_decay": (0, 1e6),
        "block": (1, 65536),
        "patience": (1, 10**9),
        "parts": (1, 2**31 - 1),
    }
    NEWER: ClassVar = {"parts": 1, "propagation": "auto"}

    def __post_init__(self) -> None:
        super().__post_init__()
        components = self.inputs == "components"
        for wrong, reason in (
            (components and self.grouping != "all", "inputs = components needs grouping = all"),
            (components and self.layers != 1, "inputs = components needs layers = 1"),
            (components and self.encoder != "linear", "inputs = components needs encoder = linear"),
            (not components and self.propagation != "auto", "propagation is for inputs = components"),
            (not components and self.objective == "clusters", "objective = clusters needs inputs = components"),
            (not components and self.encoder == "linear", "encoder = linear needs inputs = components"),
        ):
            if wrong:
                raise ConfigError(f"these settings do not work together: {reason}")


# The preset `compact`, for any graph: every step reads all components of the propagated features. Its channels are
# ITQ rotations and single columns, and each fires at a fixed share of the training graph's nodes. Training by gradients
# (spikes predict soft clusters) is off: it gains on some graphs what it loses on others (results/compact/tuning.md).
COMPACT: dict[str, Any] = {
    "steps": 8,
    "channels": 32,
    "grouping": "all",
    "inputs": "components",
    "encoder": "linear",
    "layers": 1,
    "activation": "none",
    "batch_norm": False,
    "dropout": 0.0,
    "neuron": "LIF",
    "threshold": 1.0,
    "alpha": 1.0,
    "objective": "clusters",
    "head_width": 1,
    "edge_drop": 0.3,
    "epochs": 0,
}


# What only the margin loss reads, and what else is read in training alone: compact has none unless it is given epochs.
MARGIN = frozenset({"dropout", "margin", "head_width", "shuffle", "weight_decay", "block"})
LEARNING = MARGIN | {"surrogate", "alpha", "objective", "lr", "stop", "patience", "select"}


def unread(config: Config) -> frozenset[str]:
    """Settings whose values change no code of a model of components, whether it has epochs or not."""
    found = {"activation", "edge_drop"}  # its one layer ends in the neuron, and no edge is read after the components
    if config.objective != "margin":
        found |= MARGIN
    if config.stop == "epochs":
        found |= {"patience"}
    learns_tau = config.neuron == "PLIF" and config.objective == "margin" and config.epochs > 0
    if config.neuron != "IF" and config.tau == 1 and not learns_tau:
        found |= {"threshold", "firing_rate", "reset"}  # without memory only the biases say at which share a bit fires
    elif config.threshold:
        found |= {"firing_rate"}
    return frozenset(found)


def from_mapping(values: Mapping[str, Any]) -> Config:
    """A config from the keys of a TOML table; keys not given keep their defaults."""
    return Config().replace(**dict(values))


def preset(name: str, dataset: str) -> Config:
    """A shipped setting.

    ``compact``, also called ``default``, and ``contrastive`` (the paper's model and objective, sized by the graph) are
    for any graph; ``paper`` has the published settings of the paper's datasets, ``paper-parameters`` the sizes whose
    parameter counts it prints.

    >>> preset("paper", "photo").steps
    15
    """
    if name in ("compact", "default"):
        return from_mapping(COMPACT)
    if name == "contrastive":
        return Config()
    return Config.shipped("spikegcl", name, dataset, any_graph=("compact", "contrastive"))


def fit_to_graph(config: Config, graph: Graph) -> Config:
    """Settle what the graph decides: the number of steps, when it is 0, or steps and channels from ``bits``.

    About 16 columns a step, between 8 and 32 steps: fewer would make codes too small to tell classes apart, more
    costs time without gain on the graphs tried. At least 4 columns a step, because the first layer of a narrower one
    has too few inputs to keep its channels apart and some never fire.

    Of ``bits`` the divisor nearest to the configured channels is taken, if it is at least a quarter of them: hundreds
    of steps of a few channels cost time and memory, so numbers with no such divisor get fewer steps, even one.
    """
    if config.bits and config.bits != config.steps * config.channels:
        return config.replace(**_shape(config, graph.num_features))
    if config.steps:
        return config
    width = graph.num_features
    return config.replace(steps=max(1, min(32, max(8, round(width / 16)), width // 4)))


def _shape(config: Config, width: int) -> dict[str, int]:
    """Steps and channels of ``config.bits`` bits on ``width`` feature columns."""
    steps, channels = int(config.RANGES["steps"][1]), int(config.RANGES["channels"][1])
    if config.grouping != "all":  # every step has columns of its own
        steps = min(steps, width)
    narrowest = min(config.bits, config.channels / 4)
    divisors = [
        count
        for count in range(1, min(config.bits, channels) + 1)
        if config.bits % count == 0 and count >= narrowest and config.bits // count <= steps
    ]
    if not divisors:
        raise ConfigError(
            f"{config.bits} bits cannot be had from at most {steps} steps of at most {channels} channels each; "
            "take fewer bits, or a power of two"
        )
    nearest = min(divisors, key=lambda count: abs(math.log(count / config.channels)))
    return {"steps": config.bits // nearest, "channels": nearest}
