"""The paper's theorem on firing rates, measured: errors beside the bound, and where its assumptions do not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.conversion import ASSUMPTIONS
from spikegcl.experiments import Cell, Choice, Experiment, with_chosen
from spikegcl.experiments.conversions import DEPTHS, KAPPA, KINDS, STEPS, random_conversions, trained_conversion
from spikegcl.experiments.drawings import COLOURS, MARKERS, Figure, Table, plain_table

if TYPE_CHECKING:
    from spikegcl.experiments.rows import Rows

TITLE = "The theorem on firing rates: error and bound (the paper's Theorem 2)"
GRAPHS = ("sbm:nodes=2000", "cora", "photo")
CASES = 300  # four of every kind, depth and number of steps
NETWORK = {"steps": list(STEPS), "width": 16, "layers": 2, "epochs": 200}
QUICK_NETWORK = {"steps": [4, 16, 64], "width": 16, "layers": 2, "epochs": 20}


def random_cell(dataset: str, choice: Choice) -> Cell:
    return Cell(random_conversions, dataset, options={"cases": CASES}, quick=choice.quick)


def trained_cell(dataset: str, choice: Choice) -> Cell:
    options = QUICK_NETWORK if choice.quick else NETWORK
    return Cell(trained_conversion, dataset, options=options, quick=choice.quick)


def cells(choice: Choice) -> list[Cell]:
    """None where methods were chosen: the theorem is about none of them."""
    return [
        cell
        for dataset in (() if choice.methods else choice.datasets or GRAPHS)
        for group in (random_cell(dataset, choice), trained_cell(dataset, choice))
        for cell in group.seeded(choice.seeds)
    ]


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    datasets = with_chosen(GRAPHS, choice.datasets)
    cases = [
        {"dataset": dataset, **case}
        for dataset in datasets
        for result in rows.results(random_cell(dataset, choice))
        for case in result["cases"]
    ]
    trained = {dataset: results for dataset in datasets if (results := rows.results(trained_cell(dataset, choice)))}
    held = [case for case in cases if not case["fails"]]
    notes = [
        f"{len(cases)} random cases, kappa = {KAPPA:g}. All assumptions hold in {len(held)} of them; in "
        f"{sum(case['error'] <= case['bound'] for case in held)} of these the error is within the bound.",
        *(f"{kind}: {text}." for kind, text in KINDS.items()),
        "An assumption 'fails' as described in spikegcl.conversion. 'exponent': of T in the median error of networks "
        "with so many layers; -1 is the theorem's.",
        "Figure: lines are medians over cases; of trained networks, means over seeds.",
    ]
    groups = {(kind, layers): _of(cases, kind, layers) for kind in KINDS for layers in DEPTHS}
    summary = plain_table("theorem", TITLE, [_count(*key, own) for key, own in groups.items() if own], notes)
    failures = plain_table(
        "theorem-failures",
        "Cases beyond the bound of the theorem: the worst for each assumption that fails",
        [case for assumption in ASSUMPTIONS if (case := _worst(assumption, cases))],
        ["Only cases in which no other assumption fails, where there are such."],
    )
    networks = plain_table(
        "theorem-trained",
        "A trained ReLU graph network as a spiking one, by number of steps",
        [record for dataset, results in trained.items() for record in _trained(dataset, results)],
        [
            "Two layers of 16 units, trained to classify, scaled to activations of at most 1. Errors are distances "
            "between rates and activations at a node.",
        ],
    )
    tables: list[Table | Figure] = [summary, failures, networks]
    return [*tables, Figure("theorem", lambda canvas: _paint(canvas, cases, trained), (3.4, 6.2))] if cases else tables


def _of(cases: list[dict[str, Any]], kind: str, layers: int) -> list[dict[str, Any]]:
    return [case for case in cases if (case["kind"], case["layers"]) == (kind, layers)]


def _count(kind: str, layers: int, own: list[dict[str, Any]]) -> dict[str, Any]:
    held = [case for case in own if not case["fails"]]
    medians = _medians(own)
    exponent = np.polyfit(np.log(list(medians)), np.log(list(medians.values())), 1)[0] if len(medians) > 1 else None
    return {
        "kind": kind,
        "layers": layers,
        "cases": len(own),
        "all hold": len(held),
        "of these within": sum(case["error"] <= case["bound"] for case in held),
        **{f"{name} fails": sum(name in case["fails"] for case in own) for name in ASSUMPTIONS},
        "any fails": len(own) - len(held),
        "of these beyond": sum(case["error"] > case["bound"] for case in own if case["fails"]),
        "exponent": None if exponent is None else round(float(exponent), 2),
    }


def _medians(cases: list[dict[str, Any]]) -> dict[int, float]:
    """Median error by number of steps."""
    steps = sorted({case["steps"] for case in cases})
    return {count: float(np.median([case["error"] for case in cases if case["steps"] == count])) for count in steps}


def _worst(assumption: str, cases: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The case furthest beyond the bound in which the assumption fails, alone if possible."""
    failing = [case for case in cases if assumption in case["fails"] and case["error"] > case["bound"]]
    alone = [case for case in failing if case["fails"] == [assumption]] or failing
    if not alone:
        return None
    worst = max(alone, key=lambda case: case["error"] / case["bound"])
    return {
        **worst,
        "fails": ", ".join(worst["fails"]),
        "error / bound": worst["error"] / worst["bound"],
    }


def _trained(dataset: str, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds, by number of steps."""
    records = []
    for count in results[0]["points"]:
        points = [result["points"][count] for result in results]
        means = {name: float(np.mean([point[name] for point in points])) for name in points[0] if name != "fails"}
        failed = {name: sum(name in point["fails"] for point in points) for name in ASSUMPTIONS}
        records.append(
            {
                "dataset": dataset,
                "T": int(count),
                "seeds": len(points),
                "largest error": means["error"],
                "bound": means["bound"],
                "mean error": means["mean error"],
                "mean target": means["mean target"],
                "lowest membrane": means["low"],
                "highest membrane": means["high"],
                "fails": ", ".join(name for name, times in failed.items() if times),
                "accuracy of rates (%)": 100 * means["test accuracy, rates"],
                "accuracy of network (%)": 100 * means["test accuracy, network"],
            }
        )
    return records


def _paint(canvas: Any, cases: list[dict[str, Any]], trained: dict[str, list[dict[str, Any]]]) -> None:
    above, one, two = canvas.subplots(3, 1, sharex=True)
    steps = np.array(sorted({case["steps"] for case in cases}), float)
    for number, kind in enumerate(KINDS):
        colour, marker = COLOURS[number], MARKERS[number]
        place = 2 ** (0.16 * (number - len(KINDS) // 2))  # kinds side by side at each T
        dots, marks = {"marker": ".", "markersize": 2, "alpha": 0.4}, {"marker": marker, "markeredgecolor": "black"}
        for fails, style in ((True, dots), (False, {**marks, "markeredgewidth": 0.4, "zorder": 3})):
            shown = [case for case in cases if case["kind"] == kind and bool(case["fails"]) == fails]
            ratios = [case["error"] / case["bound"] for case in shown]
            above.plot([case["steps"] * place for case in shown], ratios, linestyle="none", color=colour, **style)
        for axes, layers in ((one, 1), (two, 2)):
            medians = _medians(_of(cases, kind, layers))
            axes.plot(list(medians), list(medians.values()), label=kind, color=colour, marker=marker)
    for number, (dataset, results) in enumerate(trained.items(), len(KINDS)):
        points = {record["T"]: record["largest error"] for record in _trained(dataset, results)}
        label, marker = f"trained, {dataset.partition(':')[0]}", MARKERS[number % len(MARKERS)]
        two.plot(list(points), list(points.values()), label=label, color="black", marker=marker, linestyle="--")
    above.axhline(1, color="black", linewidth=0.8)
    for axes, title, label in (
        (above, "markers: all assumptions hold; dots: not all", "error / bound"),
        (one, "one layer", "largest error at a node"),
        (two, "two layers", "largest error at a node"),
    ):
        axes.set(yscale="log", ylabel=label)
        axes.set_xscale("log", base=2)
        axes.set_title(title, fontsize=8)
    for axes in (one, two):
        axes.plot(steps, 1 / steps, label="1 / T", color="black", linewidth=0.8, linestyle=":")
    two.set_xticks(steps, [f"{count:g}" for count in steps])
    two.set_xlabel("time steps T")
    entries = {label: handle for axes in (one, two) for handle, label in zip(*axes.get_legend_handles_labels())}
    canvas.legend(entries.values(), entries, loc="outside lower center", ncols=3)


EXPERIMENTS = (Experiment("theorem", TITLE, cells, draw),)
