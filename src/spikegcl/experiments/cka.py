"""Figure 10 of the paper: CKA between feature groups and the spikes of each step, beside the untrained encoder's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import Figure, plain_table
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.experiments.drawings import Table
    from spikegcl.experiments.rows import Rows

TITLE = "CKA between feature groups and output spikes (the paper's Figure 10)"
GRAPHS = ("computers", "photo")
ENCODERS = ("trained", "untrained")


def cka_cell(dataset: str, choice: Choice) -> Cell:
    return method_cell(measures.similarity, "spikegcl", dataset, choice)


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for _ in among(("spikegcl",), choice.methods)
        for cell in cka_cell(dataset, choice).seeded(choice.seeds)
    ]


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    records: list[dict[str, Any]] = []
    figures = []
    for dataset in with_chosen(GRAPHS, choice.datasets):
        if results := rows.results(cka_cell(dataset, choice)):
            matrices = {name: np.array([result["cka"][name] for result in results]) for name in ENCODERS}
            records += [_record(dataset, name, of_seeds) for name, of_seeds in matrices.items()]
            figures.append(_figure(dataset, {name: of_seeds.mean(0) for name, of_seeds in matrices.items()}))
    notes = [
        "Linear CKA, mean over seeds: 'own step' between a feature group and the spikes of the step that reads it.",
        "'own step first' is the share of groups that are most like the spikes of their own step, 'own group first' "
        "that of steps whose spikes are most like their own group; 'std' is over seeds.",
        "The graph mixes the features of neighbours, and columns of different groups are related: neither is learned.",
    ]
    return [plain_table("cka", TITLE, records, notes), *figures]


def _record(dataset: str, encoder: str, matrices: NDArray[np.float64]) -> dict[str, Any]:
    """Of CKA between groups (rows) and steps (columns), seeds x T x T."""
    seeds, steps, _ = matrices.shape
    own = np.eye(steps, dtype=bool)
    firsts = {
        "own step first (%)": matrices.argmax(2) == np.arange(steps),
        "own group first (%)": matrices.argmax(1) == np.arange(steps),
    }
    record = {
        "dataset": dataset,
        "encoder": encoder,
        "seeds": seeds,
        "steps": steps,
        "own step": float(matrices[:, own].mean()),
        "other steps": float(matrices[:, ~own].mean()) if steps > 1 else None,
    }
    for heading, first in firsts.items():
        shares = spread(100 * first.mean(1))
        record |= {heading: shares["mean"], heading.replace("(%)", "std"): shares["std"]}
    return record


def _figure(dataset: str, matrices: dict[str, NDArray[np.float64]]) -> Figure:
    def paint(canvas: Any) -> None:
        grid = canvas.subplots(1, len(matrices), sharey=True)
        top = max(float(matrix.max()) for matrix in matrices.values())
        for axes, (name, matrix) in zip(grid, matrices.items(), strict=True):
            ends = (0.5, len(matrix) + 0.5)
            image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=top, origin="lower", extent=(*ends, *ends))
            axes.set_title(name)
            axes.set_xlabel("spikes of step")
            axes.grid(visible=False)
        canvas.suptitle(dataset, fontsize=8)
        grid[0].set_ylabel("feature group")
        canvas.colorbar(image, ax=list(grid), label="CKA", shrink=0.8)

    return Figure(f"cka-{dataset}", paint, (3.4, 2.0))


EXPERIMENTS = (Experiment("cka", TITLE, cells, draw),)
