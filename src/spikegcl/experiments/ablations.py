"""One part of SpikeGCL exchanged at a time: encoder, neuron, reset (the paper's Tables 6 to 8) and grouping (ours)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, paper, with_chosen
from spikegcl.experiments.accuracy import CELL_NOTE, compare
from spikegcl.experiments.drawings import Table
from spikegcl.experiments.frontier import GRAPHS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spikegcl.experiments.rows import Rows


@dataclass(frozen=True)
class Ablation:
    """``variants`` are the rows of a table: what each changes in the settings of SpikeGCL."""

    name: str
    title: str
    variants: Mapping[str, dict[str, Any]]
    printed_in: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def datasets(self) -> list[str]:
        return list(GRAPHS) if self.printed_in is None else paper.datasets(self.printed_in)

    def cell(self, variant: str, dataset: str, choice: Choice) -> Cell:
        return method_cell(measures.accuracy, "spikegcl", dataset, choice, self.variants[variant])

    def cells(self, choice: Choice) -> list[Cell]:
        return [
            cell
            for dataset in choice.datasets or self.datasets
            for variant in (self.variants if among(("spikegcl",), choice.methods) else ())
            for cell in self.cell(variant, dataset, choice).seeded(choice.seeds)
        ]

    def draw(self, choice: Choice, rows: Rows) -> list[Table]:
        datasets = with_chosen(self.datasets, choice.datasets)
        lines, records = [], []
        notes = [CELL_NOTE, f"Probe: {choice.probe}. Everything else is as in the preset.", *self.notes]
        for variant in self.variants:
            texts = []
            for dataset in datasets:
                printed = None if self.printed_in is None else paper.printed(self.printed_in, variant, dataset)
                entry = compare(printed, self.cell(variant, dataset, choice), choice, rows)
                records.append({"variant": variant, "dataset": dataset, **entry.record})
                texts.append(entry.text)
                notes += [f"{variant}, {dataset}: {entry.remark}."] if entry.remark else []
            lines.append([variant, *texts])
        return [Table(self.name, self.title, ["", *datasets], lines, records, notes)]

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.name, self.title, self.cells, self.draw)


NEURONS = ("IF", "LIF", "PLIF")
MEMORY_NOTE = (
    "At tau = 1, where the presets have it, LIF holds no membrane and its reset changes nothing; PLIF starts there."
)

ABLATIONS = (
    Ablation(
        "encoders",
        "Test accuracy (%) of SpikeGCL by encoder (the paper's Table 6)",
        {kind.upper(): {"encoder": kind} for kind in ("sage", "gat", "gcn")},
        "table6",
    ),
    Ablation(
        "neurons",
        "Test accuracy (%) of SpikeGCL by neuron (the paper's Table 7)",
        {kind: {"neuron": kind} for kind in NEURONS},
        "table7",
        (MEMORY_NOTE, "The CSV has firing rates."),
    ),
    Ablation(
        "resets",
        "Test accuracy (%) of SpikeGCL by reset and neuron (the paper's Table 8)",
        {f"{reset}-{kind}": {"reset": reset, "neuron": kind} for kind in NEURONS for reset in ("zero", "subtract")},
        "table8",
        (MEMORY_NOTE, "Resets act at every step, as the paper defines them."),
    ),
    Ablation(
        "grouping",
        "Test accuracy (%) of SpikeGCL by the grouping of feature columns into steps",
        {grouping: {"grouping": grouping} for grouping in ("chunk", "random", "cluster")},
        notes=("chunk: neighbouring columns, the paper's. cluster: columns that are alike over the nodes.",),
    ),
)
EXPERIMENTS = tuple(ablation.experiment for ablation in ABLATIONS)
