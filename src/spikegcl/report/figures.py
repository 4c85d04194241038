"""The figures of the report: each takes facts and returns one SVG element (or a pair that scrolls together)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from spikegcl.report.svg import WIDTH, Axis, Plot, bitmap, nice_ticks, number

if TYPE_CHECKING:
    from spikegcl.report.facts import CodeMap, Curve, Facts, Firing, Judgement

COLOURS, SHAPES = 8, 5  # of class marks; see style.css
SPIKE = (47, 127, 193)  # reads on white and on near-black: a bitmap cannot follow the colour scheme
ROW = 7  # raster pixels a node
HEALTHY = (20, 60)  # per cent: between silent and saturated (config.py, firing_rate)
NAMES = {
    "trained": "these codes",
    "untrained": "untrained encoder",
    "projection": "random projection",
    "ppr-itq": "closed form ppr-itq",
}


def mark(label: int) -> str:
    """CSS classes of a class's mark. Equal colours differ in shape, so 40 classes stay apart, and colour is not all."""
    if label < 0:
        return "none s0"
    return f"c{label % COLOURS} s{(label + label // COLOURS) % SHAPES}"


def history(points: list[dict[str, Any]], key: str, label: str, *, percent: bool = False) -> Markup:
    """One value an epoch as a line; the axis starts at zero unless it is of per cent."""
    epochs = [point["epoch"] for point in points]
    values = [(100 if percent else 1) * point[key] for point in points]
    y = Axis.percentages(label, values) if percent else Axis.around(label, values, zero=True)
    plot = Plot(Axis.counted("epoch", len(epochs)), y)
    plot.grid()
    plot.line(epochs, values, "c0")
    for index in sorted({*np.linspace(0, len(epochs) - 1, min(len(epochs), 60)).astype(int).tolist()}):
        plot.dot(epochs[index], values[index], "c0", f"epoch {epochs[index]}: {values[index]:.4g}", 2.5)
    plot.axes()
    summary = f"Line chart of {label} over {len(epochs)} epochs, from {values[0]:.4g} to {values[-1]:.4g}."
    return plot.draw(key.replace("_", "-"), summary)


def gradient_norms(points: list[dict[str, Any]]) -> tuple[Markup, list[int]]:
    """The norm at every step's current in the first, the middle and the last epoch; and which epochs these are."""
    chosen = sorted({0, len(points) // 2, len(points) - 1})
    lines = [[max(value, 1e-12) for value in points[index]["gradient_norms"]] for index in chosen]
    steps = list(range(1, len(lines[0]) + 1))
    values = [value for line in lines for value in line]
    if max(values) > 10 * min(values):
        y = Axis.decades("gradient norm (logarithmic)", values)
    else:
        y = Axis.around("gradient norm", values, zero=True)
    plot = Plot(Axis.counted("step", len(steps)), y, left=54)
    plot.grid()
    for order, (index, line) in enumerate(zip(chosen, lines, strict=True)):
        plot.line(steps, line, f"c{order} dash{order}")
        for step, value in zip(steps, line, strict=True):
            plot.dot(step, value, f"c{order}", f"epoch {points[index]['epoch']}, step {step}: {value:.3g}", 2)
    plot.axes()
    epochs = [points[index]["epoch"] for index in chosen]
    summary = f"Line chart of the gradient norm at each of {len(steps)} steps for epochs {epochs}."
    return plot.draw("gradient-norms", summary), epochs


def accuracy(judgement: Judgement) -> Markup:
    """Dots with error bars."""
    rows = judgement.accuracies
    ends = [100 * (row.mean + side * row.error) for row in rows for side in (-1, 1)]
    x = Axis.percentages("test accuracy (%)", [min(max(end, 0.0), 100.0) for end in ends])
    y = Axis("", list(range(len(rows))), len(rows) - 0.45, -0.55)
    plot = Plot(x, y, height=70 + 56 * len(rows), left=132)
    plot.grid(rows=False, columns=True)
    for index, row in enumerate(rows):
        kind = f"c{index}"
        plot.text(plot.left - 8, plot.py(index) + 4, NAMES.get(row.name, row.name), "end", "name")
        plot.reach(index, max(x.low, 100 * (row.mean - row.error)), min(x.high, 100 * (row.mean + row.error)), kind)
        for value in row.values if len(row.values) > 1 else ():
            plot.dot(min(max(100 * value, x.low), x.high), index, f"{kind} seed", radius=2)
        tip = f"{NAMES.get(row.name, row.name)}: {100 * row.mean:.2f} % ± {100 * row.error:.2f}"
        plot.dot(100 * row.mean, index, kind, tip, 5)
        plot.text(plot.px(100 * row.mean), plot.py(index) - 9, f"{100 * row.mean:.1f} %", "middle", "value")
    plot.axes(rows=False)
    summary = "Dot plot of test accuracy: " + ", ".join(
        f"{NAMES.get(row.name, row.name)} {100 * row.mean:.1f} % plus or minus {100 * row.error:.1f}" for row in rows
    )
    return plot.draw("accuracy", f"{summary}. The axis starts at {x.low:g} %.")


def curve(data: Curve) -> Markup:
    """Accuracy against bits, logarithmic in bits."""
    lines = {"trained": data.trained, "projection": data.floor}
    values = [100 * value for line in lines.values() if line is not None for value in line]
    low, high = data.bits[0] / 1.15, data.bits[-1] * 1.15
    plot = Plot(Axis("bits per node", data.bits, low, high, log=True), Axis.percentages("test accuracy (%)", values))
    plot.grid()
    for name, kind in (("projection", "c2"), ("trained", "c0")):
        line = lines[name]
        if line is None:
            continue
        plot.line(data.bits, [100 * value for value in line], f"{kind} dash{int(name != 'trained')}")
        for width, steps, value in zip(data.bits, data.steps, line, strict=True):
            tip = f"{NAMES[name]}, {width} bits ({steps} steps): {100 * value:.1f} %"
            plot.dot(width, 100 * value, kind, tip)
    plot.axes()
    points = ", ".join(f"{100 * value:.1f} % at {width}" for width, value in zip(data.bits, data.trained, strict=True))
    return plot.draw("curve", f"Line chart of test accuracy by bits per node, these codes: {points} bits.")


def firing(data: Firing) -> Markup:
    """Mean rate a step with the spread over channels, on the band where neurons neither sleep nor saturate."""
    steps = len(data.rates)
    middle = 100 * data.rates.mean(1)
    lowest, highest = 100 * np.quantile(data.rates, [0.1, 0.9], axis=1)
    plot = Plot(Axis.counted("step", steps), Axis("firing rate (%)", [0, 20, 40, 60, 80, 100], 0, 100))
    plot.band(*HEALTHY)
    plot.grid()
    for index in range(steps):
        low, mean, high = float(lowest[index]), float(middle[index]), float(highest[index])
        tip = f"step {index + 1}: {mean:.1f} %, channels {low:.0f} to {high:.0f} %"
        tip += f", {data.dead[index]} never fire" * bool(data.dead[index])
        tip += f", {data.constant[index]} always fire" * bool(data.constant[index])
        plot.rise(index + 1, low, high, "c0")
        plot.dot(index + 1, mean, "c0", tip, 3 if steps <= 40 else 2)
    plot.axes()
    summary = f"Firing rate of {steps} steps, from {middle.min():.0f} % to {middle.max():.0f} %."
    return plot.draw("firing", summary)


def bit_rates(data: Firing) -> tuple[Markup, list[tuple[str, int]]]:
    """How many bits fire how often, in twentieths; and the counts by range."""
    counts, edges = np.histogram(100 * data.rates, 20, (0, 100))
    x = Axis("share of nodes in which the bit is 1 (%)", [0, 20, 40, 60, 80, 100], 0, 100)
    plot = Plot(x, Axis.around("bits", [float(counts.max())], zero=True))
    plot.grid()
    rows = [
        (f"{low:.0f} to {high:.0f} %", int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    for (name, count), low, high in zip(rows, edges[:-1], edges[1:], strict=True):
        plot.column(float(low), float(high), count, "c0", f"{name}: {count} bits")
    plot.axes()
    return plot.draw("bit-rates", f"Histogram of the firing rates of {data.rates.size} bits."), rows


def raster(facts: Facts) -> Markup:
    """Class names that stay, and the spikes that scroll beside them: one pixel or more a bit, never resampled."""
    data = facts.raster
    rows, columns = data.matrix.shape
    scale = max(1, 960 // columns)
    wide, tall, top = columns * scale, rows * ROW, 18
    stride = -(-facts.codes.steps // 16)
    parts = [
        Markup(
            '<image href="{}" x="0" y="{}" width="{}" height="{}" preserveAspectRatio="none" class="spikes"/>'
        ).format(bitmap(data.matrix, SPIKE), top, wide, tall)
    ]
    for step in range(facts.codes.steps):
        x = step * data.channels * scale
        parts.append(Markup('<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(x, top - 4, x, top + tall))
        if step % stride == 0:
            parts.append(Markup('<text class="tick" x="{}" y="11">{}</text>').format(x + 3, step + 1))
    names: list[Markup] = []
    labels = [facts.label(int(row)) for row in data.rows]
    for label in sorted(set(labels)) if facts.graph.labels is not None else ():
        first, count = labels.index(label), labels.count(label)
        y = top + first * ROW
        names.append(
            Markup('<rect class="fill {}" x="72" y="{}" width="5" height="{}"/>').format(
                mark(label), y, count * ROW - 1
            )
        )
        if count * ROW >= 10:
            name = facts.class_name(label)
            shown = name if len(name) <= 10 else name[:9] + "…"
            place = number(y + count * ROW / 2 + 4)
            names.append(Markup('<text class="tick" x="68" y="{}" text-anchor="end">{}</text>').format(place, shown))
        if first:
            parts.append(Markup('<line class="grid" x1="0" y1="{}" x2="{}" y2="{}"/>').format(y - 0.5, wide, y - 0.5))
    summary = f"Spike raster: {rows} nodes sorted by class, {columns} bits in {facts.codes.steps} steps."
    frame = '<svg class="fixed{}" width="{}" height="{}" viewBox="0 0 {} {}"{}>{}</svg>'
    side = Markup(frame).format(
        " stay", 80, top + tall, 80, top + tall, Markup(' aria-hidden="true"'), Markup("").join(names)
    )
    attributes = Markup(' role="img" id="raster" data-figure="raster" data-top="{}" aria-label="{}"').format(
        top, summary
    )
    picture = Markup(frame).format("", wide, top + tall, wide, top + tall, attributes, Markup("").join(parts))
    return (side if names else Markup("")) + picture


def code_map(facts: Facts) -> tuple[Markup, list[list[float]]]:
    """Marks of all sampled nodes, one path a class, and their pixel positions for the pointer."""
    data = facts.code_map
    x, y, height = _equal_axes(data)
    plot = Plot(x, y, height=height, left=40)
    places = [[round(plot.px(x), 1), round(plot.py(y), 1)] for x, y in data.points.tolist()]
    labels = np.array([facts.label(int(row)) for row in data.rows])
    for label in np.unique(labels).tolist():
        kind = mark(label)
        points = [places[index] for index in np.flatnonzero(labels == label)]
        outline = "".join(_MARKS[kind[-1]].format(number(px), number(py)) for px, py in points)
        plot.parts.append(Markup('<path class="mark {}" data-class="{}" d="{}"/>').format(kind, label, outline))
    plot.parts.append(Markup('<circle class="cursor" id="cursor" r="6" cx="-20" cy="-20"/>'))
    plot.axes()
    summary = f"Scatter plot of {len(places)} nodes by the first two principal components of their bits."
    return plot.draw("map", summary), places


# Circle and square are line caps of an empty stroke; the others are outlines around the point.
_MARKS = {
    "0": "M{} {}h0",
    "1": "M{} {}h0",
    "2": "M{} {}m0-3l2.8 5h-5.6z",
    "3": "M{} {}m0-3.2l3.2 3.2l-3.2 3.2l-3.2-3.2z",
    "4": "M{} {}m-3 0h6m-3-3v6",
}


def _equal_axes(data: CodeMap) -> tuple[Axis, Axis, int]:
    """Axes on which a unit is as long across as up, and the height of the plot that makes it so."""
    low, high = data.points.min(0), data.points.max(0)
    middle, spread = (low + high) / 2, np.maximum(high - low, 1e-6) * 1.06
    wide, tall = WIDTH - 40 - Plot.right, 340
    unit = max(spread[0] / wide, spread[1] / tall)
    height = int(min(max(spread[1] / unit, 160), tall))
    axes = []
    for index, pixels in enumerate((wide, height)):
        ends = (float(middle[index] - unit * pixels / 2), float(middle[index] + unit * pixels / 2))
        label = f"component {index + 1} ({100 * data.shares[index]:.1f} %)"
        axes.append(Axis(label, [tick for tick in nice_ticks(*ends) if ends[0] <= tick <= ends[1]], *ends))
    return axes[0], axes[1], height + Plot.top + Plot.bottom


def sizes(named: dict[str, float]) -> Markup:
    """Megabytes as bars from zero."""
    ticks = nice_ticks(0, max(named.values()), 4)
    x = Axis("megabytes", ticks, 0, ticks[-1])
    y = Axis("", range(len(named)), len(named) - 0.4, -0.6)
    plot = Plot(x, y, height=56 + 46 * len(named), left=8)
    plot.grid(rows=False, columns=True)
    for index, (name, value) in enumerate(named.items()):
        plot.text(plot.left, plot.py(index) - 10, f"{name}: {value:,.2f} MB", kind="name")
        plot.bar(index + 0.12, value, f"c{index}", 14)
    plot.axes(rows=False)
    listed = ", ".join(f"{name} {value:.2f} MB" for name, value in named.items())
    return plot.draw("sizes", f"Bar chart of sizes: {listed}.")
