"""Figure 5 of the paper: gradient norms at every time step, for neurons with and without memory, blockwise or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spikegcl.experiments import Cell, Choice, Experiment, among, measures, method_cell, with_chosen
from spikegcl.experiments.drawings import COLOURS, MARKERS, Figure, plain_table
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from spikegcl.experiments.drawings import Table
    from spikegcl.experiments.rows import Rows

TITLE = "Gradient norms by time step (the paper's Figure 5)"
GRAPHS = ("computers", "photo")
NEURONS: dict[str, dict[str, Any]] = {
    "IF": {"neuron": "IF"},
    "LIF, tau 1": {"neuron": "LIF", "tau": 1.0},
    "LIF, tau 2": {"neuron": "LIF", "tau": 2.0},
}
END_TO_END = 65536  # a block no shorter than any sequence
TRAININGS = {"blockwise": 1, "end to end": END_TO_END}


def gradient_cell(neuron: str, block: int, dataset: str, choice: Choice) -> Cell:
    """SpikeGCL with one of ``NEURONS``, trained in blocks of ``block`` steps; all steps, if there are not as many."""
    changes = {**NEURONS[neuron], "block": block}
    return method_cell(measures.gradients, "spikegcl", dataset, choice, changes)


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for neuron in (NEURONS if among(("spikegcl",), choice.methods) else ())
        for block in TRAININGS.values()
        for cell in gradient_cell(neuron, block, dataset, choice).seeded(choice.seeds)
    ]


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    records: list[dict[str, Any]] = []
    figures = []
    for dataset in with_chosen(GRAPHS, choice.datasets):
        curves = {}
        for neuron in NEURONS:
            for training, block in TRAININGS.items():
                if results := rows.results(gradient_cell(neuron, block, dataset, choice)):
                    norms = _mean_norms(results)
                    curves[neuron, training] = norms
                    records.append(_record(dataset, neuron, training, norms, results))
        if curves:
            figures.append(_figure(dataset, curves))
    notes = [
        "Norm of the loss's gradient at the current of a step, over nodes and channels; mean over epochs and seeds.",
        "At tau = 1 LIF has no memory: nothing flows between steps, and blocks of any length differ by rounding alone.",
    ]
    return [plain_table("gradients", TITLE, records, notes), *figures]


def _mean_norms(results: list[dict[str, Any]]) -> list[float]:
    return [spread(step)["mean"] for step in zip(*(result["gradient_norms"] for result in results), strict=True)]


def _record(
    dataset: str, neuron: str, training: str, norms: list[float], results: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "neuron": neuron,
        "training": training,
        "seeds": len(results),
        "steps": len(norms),
        "first step": norms[0],
        "middle step": norms[len(norms) // 2],
        "last step": norms[-1],
        "first / last": norms[0] / norms[-1] if norms[-1] else None,
        "test accuracy (%)": 100 * spread(result["test_accuracy"] for result in results)["mean"],
        "untrained (%)": 100 * spread(result["floors"]["untrained"]["test_accuracy"] for result in results)["mean"],
    }


def _figure(dataset: str, curves: dict[tuple[str, str], list[float]]) -> Figure:
    def paint(canvas: Any) -> None:
        axes = canvas.subplots()
        for (neuron, training), norms in curves.items():
            which = list(NEURONS).index(neuron)
            axes.plot(
                range(1, len(norms) + 1),
                norms,
                label=f"{neuron}, {training}",
                color=COLOURS[which],
                marker=MARKERS[which],
                markevery=(2 * which, 6),
                linestyle="-" if training == "blockwise" else "--",
                linewidth=2.2 if training == "blockwise" else 1.2,  # both stay visible where they coincide
                alpha=0.5 if training == "blockwise" else 1.0,
            )
        axes.set_yscale("log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("time step")
        axes.set_ylabel("gradient norm")
        axes.set_title(dataset)
        canvas.legend(loc="outside lower center", ncols=2)

    return Figure(f"gradients-{dataset}", paint, (3.4, 2.9))


EXPERIMENTS = (Experiment("gradients", TITLE, cells, draw),)
