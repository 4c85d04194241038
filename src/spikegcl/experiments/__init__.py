"""Experiments: a grid of cells to measure, and how their rows become tables and figures.

An experiment is a value of :class:`Experiment` in one file of this package. It declares cells for a :class:`Choice` and
draws what rows there are; :mod:`runner` makes the missing rows. docs/reproduce.md shows how to use and extend it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spikegcl.baselines import find_method
from spikegcl.errors import ConfigError, PresetMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spikegcl.baselines import Method
    from spikegcl.experiments.drawings import Figure, Table
    from spikegcl.experiments.rows import Rows
    from spikegcl.settings import Settings

# Where each experiment lives, in the order `reproduce all` runs them. A module defines EXPERIMENTS.
_HOME = {
    "datasets": "datasets",
    "table1": "accuracy",
    "citation": "accuracy",
    "efficiency": "efficiency",
    "time-steps": "time_steps",
    "encoders": "ablations",
    "neurons": "ablations",
    "resets": "ablations",
    "thresholds": "thresholds",
    "convergence": "convergence",
    "gradients": "gradients",
    "cka": "cka",
    "theorem": "theorem",
    "learning-gain": "learning_gain",
    "frontier": "frontier",
    "grouping": "ablations",
    "blocks": "blocks",
    "few-labels": "few_labels",
}
QUICK_EPOCHS = 5
PRESETS = ("paper", "cpu", "default")


@dataclass(frozen=True)
class Choice:
    """What is wanted of an experiment. Empty ``datasets`` or ``methods``: all that the experiment is about.

    ``quick`` cuts every training to a few epochs: it tries out the machinery, its numbers mean nothing.
    """

    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: int = 3
    preset: str = "cpu"
    probe: str = "logreg"
    device: str = "cpu"
    quick: bool = False
    data_root: Path | None = None


# (cell, graph, on_epoch, **cell.options) -> what JSON can hold. It runs in a process of its own; ``on_epoch`` is called
# after every epoch, so that a cell that is stopped can say how far it got.
Measure = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """Everything that decides a row.

    ``measure`` is a function that can be imported. ``preset`` and ``changes`` decide nothing: they say where
    ``settings`` come from.
    ``quick`` marks the rows of a dry run, so that they are not taken for others even where the settings are the same.
    ``revision`` is the method's.
    """

    measure: Measure
    dataset: str
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    preset: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    quick: bool = False
    revision: int = 1

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify the cell; those of all its seeds are equal."""
        decides: list[Any] = [self.measure.__name__, self.dataset, self.method, self.settings, self.options]
        decides += ["quick"] if self.quick else []
        decides += [self.revision] if self.revision > 1 else []
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]

    def seeded(self, seeds: int) -> list[Cell]:
        return [dataclasses.replace(self, seed=seed) for seed in range(seeds)]

    def __str__(self) -> str:
        changes = "".join(f", {name} {value}" for name, value in self.changes.items())
        return f"{self.method or self.measure.__name__} on {self.dataset}{changes}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """``cells`` are those to run for a choice; ``draw`` shows all rows the experiment is about, whenever chosen."""

    name: str
    title: str
    cells: Callable[[Choice], list[Cell]]
    draw: Callable[[Choice, Rows], Sequence[Table | Figure]]


def experiment_names() -> tuple[str, ...]:
    return tuple(_HOME)


def find_experiment(name: str) -> Experiment:
    if name not in _HOME:
        raise ConfigError(f"no experiment is called {name!r}; choose one of {', '.join(_HOME)}, or all")
    experiments: tuple[Experiment, ...] = importlib.import_module(f"{__name__}.{_HOME[name]}").EXPERIMENTS
    return next(experiment for experiment in experiments if experiment.name == name)


def method_cell(
    measure: Measure, name: str, dataset: str, choice: Choice, changes: dict[str, Any] | None = None, **options: Any
) -> Cell:
    """The cell of a method with its settings for the dataset, some of them changed.

    A supervised method is judged by its own predictions, so that the probe decides nothing about it.
    """
    method = find_method(name)
    preset, settings = choose_settings(method, dataset, choice.preset)
    changes = changes or {}
    settings = settings.replace(**changes)
    if choice.quick and hasattr(settings, "epochs"):
        settings = settings.replace(epochs=min(settings.epochs, QUICK_EPOCHS))
    judged = {"probe": choice.probe} if method.unsupervised else {}
    options = {"device": choice.device, **judged, **options}
    known, revision = settings.known(), method.revision
    return Cell(measure, dataset, name, known, options, preset, changes, quick=choice.quick, revision=revision)


def choose_settings(method: Method, dataset: str, preset: str) -> tuple[str, Settings]:
    """The first of ``preset``, ``paper``, ``contrastive`` and ``default`` with settings for the dataset, and its name.

    Experiments are about the paper's model: on other graphs SpikeGCL is the preset ``contrastive``.
    """
    if (method.name, preset) == ("spikegcl", "default"):
        preset = "contrastive"
    for name in (preset, "paper", "contrastive"):
        try:
            return name, method.settings_for(name, dataset)
        except PresetMissingError:
            continue
    return "default", method.settings_for("default", dataset)


def among(usual: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Those of an experiment's own names that were chosen; all of them if nothing was."""
    return [name for name in usual if not chosen or name in chosen]


def with_chosen(usual: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """What an experiment is about, and behind it what was chosen beyond that."""
    return [*usual, *(name for name in chosen if name not in usual)]
