"""Figure 10 of the paper: CKA between feature groups and the spikes of each step, beside the untrained encoder's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import Figure, plain_table

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
            means = {name: np.mean([result["cka"][name] for result in results], axis=0) for name in ENCODERS}
            records += [_record(dataset, name, matrix, len(results)) for name, matrix in means.items()]
            figures.append(_figure(dataset, means))
    notes = [
        "Linear CKA, mean over seeds: 'own step' between a feature group and the spikes of the step that reads it.",
        "'own step first' is the share of groups that are most like the spikes of their own step.",
        "The graph mixes the features of neighbours, and columns of different groups are related: neither is learned.",
    ]
    return [plain_table("cka", TITLE, records, notes), *figures]


def _record(dataset: str, encoder: str, matrix: NDArray[np.float64], seeds: int) -> dict[str, Any]:
    own = np.eye(len(matrix), dtype=bool)
    return {
        "dataset": dataset,
        "encoder": encoder,
        "seeds": seeds,
        "steps": len(matrix),
        "own step": float(matrix[own].mean()),
        "other steps": float(matrix[~own].mean()) if len(matrix) > 1 else None,
        "own step first (%)": 100 * float((matrix.argmax(1) == np.arange(len(matrix))).mean()),
    }


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
