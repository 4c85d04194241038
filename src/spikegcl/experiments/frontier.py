"""Accuracy against bits per node: SpikeGCL at other widths, compact, the floors, every float method made into bits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spikegcl.baselines import SIGN, find_method, method_names
from spikegcl.experiments import Cell, Choice, Experiment, choose_settings, measures, method_cell, paper, with_chosen
from spikegcl.experiments.drawings import Figure, Table, curve_styles, over_seeds, plot_curves
from spikegcl.experiments.rows import DONE
from spikegcl.probes import PROBES
from spikegcl.protocol import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spikegcl.experiments.rows import Rows

TITLE = "Test accuracy (%) by bits per node"
BITS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
QUICK_BITS = (64, 512)
GRAPHS = ("cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics")
FLOORS = ("untrained", "projection")
OURS = {"spikegcl": FLOORS, "compact": ("projection",)}  # and the floors their rows have at the same number of bits
TICK_ROOM = 0.07  # of an axis, for a number beside it
MARGIN = 0.05  # of an axis, for markers at its lower end
ALL_FLOORS = (*FLOORS, "pca-projection", "itq", "ppr-itq")  # these have rows of their own
# Method, probe and bits; the strongest floor stands beside what is compared.
BESIDE_PRINTED = (
    ("compact", "logreg", 256),
    ("compact", "logreg", 512),
    ("compact", "logreg", 1024),
    ("compact", "paper", 512),
    ("ppr-itq", "logreg", 512),
)

Series = dict[int, dict[int, float]]  # test accuracies by bits, then by seed


def code_cell(dataset: str, bits: int, choice: Choice) -> Cell:
    """SpikeGCL with codes of ``bits`` bits: the published 64 channels where that leaves 8 steps or more, else 8 steps.

    The published threshold belongs to the published size; here it is calibrated.
    """
    steps = max(8, bits // 64)
    changes = {"steps": steps, "channels": bits // steps, "threshold": 0.0}
    return method_cell(measures.accuracy, "spikegcl", dataset, choice, changes)


def cells(choice: Choice) -> list[Cell]:
    return [
        cell
        for dataset in choice.datasets or GRAPHS
        for method in (_chosen(choice) if choice.methods else methods())
        for group in (*_cells_of(method, dataset, choice), *_cells_beside_printed(method, dataset, choice))
        for cell in group.seeded(choice.seeds)
    ]


def methods() -> list[str]:
    """All that can make codes of a given width. Two floors come with the rows of others (``OURS``)."""
    return [name for name in method_names() if name not in FLOORS and _makes_codes(name)]


def _chosen(choice: Choice) -> list[str]:
    """Those of the chosen methods that can; DGI and DGI+sign are the same choice, and two floors come with others."""
    names = dict.fromkeys(name.removesuffix(SIGN) for name in choice.methods)
    return [name for name in names if name not in FLOORS and _makes_codes(name)]


def _makes_codes(name: str) -> bool:
    method = find_method(name)
    return method.unsupervised and (not method.binary or name == "spikegcl" or takes_bits(name))


def takes_bits(name: str) -> bool:
    """Whether the width of its codes is a setting of the method."""
    return any(field.name == "bits" for field in fields(find_method(name).settings))


def _cells_of(name: str, dataset: str, choice: Choice) -> list[Cell]:
    """The cells of one method: one for each width or, for a float method, one for all of them."""
    widths = QUICK_BITS if choice.quick else BITS
    if name == "spikegcl":
        return [code_cell(dataset, bits, choice) for bits in widths]
    if takes_bits(name):
        return [method_cell(measures.accuracy, name, dataset, choice, {"bits": bits}) for bits in widths]
    return [method_cell(measures.signs, name, dataset, choice, bits=list(widths))]


def _cells_beside_printed(name: str, dataset: str, choice: Choice) -> list[Cell]:
    """The cells under another probe than the chosen one, for the table beside what the paper prints."""
    return [
        method_cell(measures.accuracy, name, dataset, replace(choice, probe=probe), {"bits": bits})
        for method, probe, bits in BESIDE_PRINTED
        if method == name and probe != choice.probe and not choice.quick
    ]


def draw(choice: Choice, rows: Rows) -> list[Table | Figure]:
    widths = QUICK_BITS if choice.quick else BITS
    lines, records, figures, gains = [], [], [], []
    for dataset in with_chosen(GRAPHS, choice.datasets):
        curves = _curves(dataset, choice, rows)
        gains += _gains(dataset, curves)
        for name, series in curves.items():
            spreads = {bits: spread(series[bits].values()) for bits in widths if bits in series}
            lines.append([dataset, name, *(_text(spreads.get(bits), series.get(bits)) for bits in widths)])
            records += [
                {"dataset": dataset, "method": name, "bits": bits, "accuracy": value["mean"], "std": value["std"],
                 "seeds": len(series[bits])}
                for bits, value in spreads.items()
            ]  # fmt: skip
        if curves:
            figures.append(_figure(dataset, curves))
    columns = ["dataset", "method", *(f"{bits} bits" for bits in widths)]
    notes = [
        f"Mean ± standard deviation (seeds). Probe: {choice.probe}. +sign: a float embedding made into bits.",
        "SpikeGCL: settings of the preset, except steps and channels, and a calibrated threshold.",
        "BANE with about as many bits as nodes: random signs fit the factors after few changes, and with more bits "
        "than nodes (Cora and CiteSeer at 4096) exactly, so that what is probed is little but the random start.",
        "Figures: the axis of accuracy is logarithmic in the distance from one point above its upper end.",
    ]
    table = Table("frontier", TITLE, columns, lines, records, notes)
    return [table, *_gain_table(gains, widths), *_printed_table(choice, rows), *figures]


def _gains(dataset: str, curves: dict[str, Series]) -> list[dict[str, Any]]:
    """How far compact is ahead of the best floor with as many bits, in points, over the seeds that both have."""
    records = []
    for bits, values in sorted(curves.get("compact", {}).items()):
        floors = {name: curves[name][bits] for name in ALL_FLOORS if bits in curves.get(name, {})}
        ahead = {
            name: [100 * (values[seed] - floor[seed]) for seed in values.keys() & floor.keys()]
            for name, floor in floors.items()
        }
        gains = {name: (_mean(found), len(found)) for name, found in ahead.items() if found}
        if gains:
            best = min(gains, key=lambda name: gains[name][0])
            gain, seeds = gains[best]
            records.append({"dataset": dataset, "bits": bits, "gain": gain, "floor": best, "seeds": seeds})
    return records


def _mean(values: Iterable[float]) -> float:
    return spread(values)["mean"]


def _gain_table(gains: list[dict[str, Any]], widths: Sequence[int]) -> list[Table]:
    """Points that compact is ahead, a line a dataset; the last is the mean over them."""
    if not gains:
        return []
    at = {(record["dataset"], record["bits"]): record for record in gains}
    lines = [
        [dataset, *(_gain_text(at.get((dataset, bits))) for bits in widths)]
        for dataset in dict.fromkeys(record["dataset"] for record in gains)
    ]
    means = [[record["gain"] for record in gains if record["bits"] == bits] for bits in widths]
    lines.append(["mean", *(f"{_mean(found):+.1f}" if len(found) == len(lines) else "" for found in means)])
    notes = [
        "Points ahead of the floor that comes closest (which, seeds that both have), and their mean where all graphs "
        "have it. Without ppr-itq it is an easy one.",
    ]
    columns = ["dataset", *(f"{bits} bits" for bits in widths)]
    return [Table("frontier-gain", "Compact against the best floor with as many bits", columns, lines, gains, notes)]


def _gain_text(record: dict[str, Any] | None) -> str:
    return "" if record is None else f"{record['gain']:+.1f} ({record['floor']}, {record['seeds']})"


def _printed_table(choice: Choice, rows: Rows) -> list[Table]:
    """Compact under both probes beside what the paper prints: SpikeGCL with its bits, and the best of all systems."""
    lines, records = [], []
    for dataset in with_chosen(GRAPHS, choice.datasets):
        curves = {probe: _curves(dataset, replace(choice, probe=probe), rows) for probe in PROBES}
        printed = {name: paper.number(paper.accuracy(name, dataset)) for name in paper.methods()}
        known = {name: value for name, value in printed.items() if value is not None}
        if "spikegcl" not in known or not any("compact" in found for found in curves.values()):
            continue
        best = max(known, key=lambda name: known[name])
        facts = {"dataset": dataset, "spikegcl": known["spikegcl"], "spikegcl_bits": _published_bits(dataset)}
        facts |= {"best": known[best], "best_system": best}
        line = [dataset, f"{known['spikegcl']:.1f} ({facts['spikegcl_bits']} bits)"]
        line.append(f"{known[best]:.1f} ({paper.methods()[best][0]})")
        for method, probe, bits in BESIDE_PRINTED:
            values = curves[probe].get(method, {}).get(bits)
            found = None if values is None else spread(values.values())
            line.append(_text(found, values))
            if values is not None and found is not None:
                about = {"method": method, "probe": probe, "bits": bits, "seeds": len(values)}
                records.append({**facts, **about, **found})
        lines.append(line)
    if not lines:
        return []
    columns = ["dataset", "SpikeGCL, printed", "best of 16, printed"]
    columns += [f"{method}, {bits} bits, {probe} probe" for method, probe, bits in BESIDE_PRINTED]
    notes = [
        "Test accuracy (%), mean ± standard deviation (seeds). The last column is the strongest floor, a closed form."
    ]
    return [Table("frontier-printed", "Compact beside what the paper prints", columns, lines, records, notes)]


def _text(value: dict[str, float] | None, seeds: dict[int, float] | None) -> str:
    return "" if value is None or seeds is None else over_seeds(value["mean"], value["std"], len(seeds))


def _curves(dataset: str, choice: Choice, rows: Rows) -> dict[str, Series]:
    """Every method with a row on the dataset, and the floors."""
    curves: dict[str, Series] = {}
    for name in with_chosen(methods(), _chosen(choice)):
        for cell in _cells_of(name, dataset, choice):
            for row in rows.find(cell):
                for label, bits, accuracy in _points(name, row["result"]) if row["status"] == DONE else ():
                    curves.setdefault(label, {}).setdefault(bits, {})[row["seed"]] = accuracy
    return curves


def _points(name: str, result: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Curve, bits and test accuracy of everything in a row."""
    if "points" in result:
        return [(name + SIGN, int(bits), point["test_accuracy"]) for bits, point in result["points"].items()]
    judged = {name: result} | {floor: result["floors"][floor] for floor in OURS.get(name, ())}
    return [(label, result["bits"], at["test_accuracy"]) for label, at in judged.items()]


def _figure(dataset: str, curves: dict[str, Series]) -> Figure:
    """Codes and floors; below them the float methods made into bits, beside the same two of our curves."""
    printed = paper.number(paper.accuracy("spikegcl", dataset) or "")
    percents = {
        name: {float(bits): [100 * value for value in values.values()] for bits, values in series.items()}
        for name, series in curves.items()
    }
    ours = {name: percents[name] for name in OURS if name in percents}
    signs = {name: percents[name] for name in percents if name.endswith(SIGN)}
    groups = [ours | {name: percents[name] for name in percents if name not in signs}]
    groups += [ours | signs] if signs else []
    shown = [value for series in percents.values() for values in series.values() for value in values]
    shown += [] if printed is None else [printed]
    worst, best = min(shown), max(shown) + 0.3

    # The axis is logarithmic in the distance from the best, where curves that matter differ by one or two points.
    def nearness(y: Any) -> Any:
        return -np.log(np.maximum(best + 1 - np.asarray(y), 1e-9))

    def percent(z: Any) -> Any:
        return best + 1 - np.exp(-z)

    low = percent(nearness(worst) - MARGIN * (nearness(best) - nearness(worst)))
    styles = curve_styles(list(dict.fromkeys(name for group in groups for name in group)), line_style)
    ticks = sorted({width for series in curves.values() for width in series if width in BITS})

    def paint(canvas: Any) -> None:
        panels = canvas.subplots(len(groups), squeeze=False, sharex=True, sharey=True).ravel()
        entries: dict[str, Any] = {}
        for axes, group in zip(panels, groups, strict=True):
            plot_curves(axes, group, styles)
            if printed is not None:
                at = [_published_bits(dataset)], [printed]
                axes.plot(*at, "k*", markersize=10, markeredgecolor="white", zorder=5, label="SpikeGCL, printed")
            axes.set_ylabel("test accuracy (%)")
            handles, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))

        axes.set_yscale("function", functions=(nearness, percent))
        axes.set_ylim(low, best)
        axes.set_yticks(_ticks(low, best, nearness))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(width) for width in ticks])
        axes.set_xlabel("bits per node")
        canvas.suptitle(dataset, fontsize=8)
        canvas.legend(entries.values(), entries, loc="outside lower center", ncols=3, columnspacing=1)

    return Figure(f"frontier-{dataset}", paint, (3.4, 0.7 + 1.7 * len(groups) + 0.15 * -(-len(curves) // 3)))


def _ticks(low: float, high: float, place: Callable[[float], float]) -> list[int]:
    """Whole numbers from ``low`` to ``high``, the rounder first, as many as there is room for at their ``place``.

    >>> _ticks(61.0, 79.5, float)
    [62, 65, 68, 70, 72, 75, 78]
    """
    chosen: list[int] = []
    room = TICK_ROOM * (place(high) - place(low))
    for step in (10, 5, 2, 1):
        for tick in range(-step * int(-low // step), int(high) + 1, step):
            if all(abs(place(tick) - place(other)) >= room for other in chosen):
                chosen.append(tick)
    return sorted(chosen)


def line_style(name: str) -> str:
    """Floors are dashed, float methods made into bits are dotted."""
    return "--" if name in ALL_FLOORS else ":" if name.endswith(SIGN) else "-"


def _published_bits(dataset: str) -> int:
    _, config = choose_settings(find_method("spikegcl"), dataset, "paper")
    return int(config.steps * config.channels)  # type: ignore[attr-defined]


EXPERIMENTS = (Experiment("frontier", TITLE, cells, draw),)
