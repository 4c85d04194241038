"""From facts to HTML: words and tables around the figures. Jinja escapes every string that comes from a user."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from spikegcl.config import Config, preset
from spikegcl.report import figures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spikegcl.report.facts import Facts, Judgement

ID_LENGTH = 80  # of an id as shown: ids may be whole addresses
TABLE_ROWS = 64  # of the numbers under a figure
# What the default of a setting means where its value does not say.
DEFAULTS = {"steps": "from the graph", "threshold": "calibrated"}  # where it is 0
_LOSSES = {
    "margin": "Margin ranking loss of an epoch, mean over steps.",
    "clusters": "Cross-entropy of predicted clusters, mean over an epoch.",
}
RULES = {
    "paper-spikes": "the spikes fired and nothing else, as in the paper's table",
    "paper-full": "the spikes, and one multiply-accumulate per feature and step for encoding, the paper's formula",
    "all-ops": "the spikes and every multiply-accumulate of the pass",
}
SPACE = "\N{NO-BREAK SPACE}"  # a number and its unit stay on one line


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows, and its numbers for those who cannot see it."""

    title: str
    picture: Markup
    caption: str
    legend: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def render(facts: Facts) -> str:
    """The whole page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Classes of the sampled nodes only: a legend of thousands would drown the page.
    labels = sorted({facts.label(int(row)) for row in (*facts.code_map.rows, *facts.raster.rows)})
    picture, places = figures.code_map(facts)
    return environment.from_string(_resource("template.html")).render(
        style=Markup(_resource("style.css")),
        script=Markup(_resource("script.js")),
        facts=facts,
        labelled=facts.graph.labels is not None,
        graph=facts.graph,
        metrics=facts.metrics,
        lead=_lead(facts),
        tiles=_tiles(facts),
        about=_about(facts),
        changed=[row for row in _settings(facts.config) if row[3]],
        settings=_settings(facts.config),
        accuracy=_accuracy(facts) if facts.judgement else [],
        verdict=_verdict(facts.judgement) if facts.judgement else "",
        training=_training(facts),
        untrained_note=_untrained_note(facts.config),
        spikes=_firing(facts),
        raster=figures.raster(facts),
        raster_note=_raster_note(facts),
        code_map=picture,
        classes=[(label, figures.mark(label), facts.class_name(label)) for label in labels],
        examples=[_example(facts, example) for example in facts.examples],
        energy=_energy(facts),
        sizes=_sizes(facts),
        data={
            "map": {
                "at": places,
                "id": [_id(facts, row) for row in facts.code_map.rows],
                "label": [facts.label(int(row)) for row in facts.code_map.rows],
            },
            "raster": {
                "id": [_id(facts, row) for row in facts.raster.rows],
                "label": [facts.label(int(row)) for row in facts.raster.rows],
                "columns": facts.raster.matrix.shape[1],
                "channels": facts.raster.channels,
            },
            "classes": {label: facts.class_name(label) for label in labels} if facts.graph.labels is not None else {},
        },
    )


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _id(facts: Facts, row: Any) -> str:
    name = str(facts.graph.ids[row])
    return name if len(name) <= ID_LENGTH else name[: ID_LENGTH - 1] + "…"


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}{SPACE}%"


def joules(value: float) -> str:
    """An energy in the unit that leaves one to three digits before the point.

    >>> joules(1.18e-5)
    '11.8\\xa0µJ'
    """
    for factor, unit in ((1, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")):
        if value >= factor:
            return f"{value / factor:.3g}{SPACE}{unit}"
    return f"{value / 1e-12:.3g}{SPACE}pJ"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


# ------------------------------------------------------------------------------------------------- what was trained


def _lead(facts: Facts) -> str:
    row = facts.metrics["rows"][0]
    choice = "best on validation nodes" if facts.config.select == "validation" else "the last"
    without = "found without labels or gradients" if _is_fitted(facts.config) else "not trained"
    trained = f"trained without labels for {plural(row['epochs'], 'epoch')}" if row["epochs"] else without
    kept = f" (epoch {row['epoch']} kept, {choice})" if row["epochs"] else ""
    return f"{plural(len(facts.codes), 'node')} as codes of {facts.codes.bits:,} bits each, {trained}{kept}."


def _is_fitted(config: Config) -> bool:
    """Whether the encoder starts from something better than chance."""
    return config.inputs == "components"


def _untrained_note(config: Config) -> str:
    if _is_fitted(config):
        return "No epoch was trained: directions and thresholds were found without gradients (docs/compact.md)."
    return "No epoch was trained: these are the codes of the encoder as initialised."


def _objective(config: Config) -> str:
    if _is_fitted(config) and not config.epochs:
        return "none: no gradients"
    if config.objective == "clusters":
        return "spikes predict soft clusters of the components"
    return f"margin {config.margin:g}, {percent(config.edge_drop, 0)} of edges dropped in the corrupted view"


def _tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """Headline numbers: value, name, small print."""
    codes, metrics = facts.codes, facts.metrics
    tiles = []
    if facts.judgement:
        best = max(facts.judgement.accuracies[1:], key=lambda row: row.mean)
        floor = f"best floor {percent(best.mean)}"
        tiles.append((percent(facts.judgement.accuracies[0].mean), "test accuracy", floor))
    size = codes.packed.shape[1]
    tiles.append((f"{codes.bits:,}", "bits per node", f"{size:,} bytes, float32 would be {4 * codes.bits:,}"))
    tiles.append((percent(float(facts.firing.rates.mean())), "firing rate", _silent(facts)))
    tiles.append(
        (f"{metrics['seconds']['train']:.3g}{SPACE}s", "training", f"peak memory {metrics['peak_mb']:,.0f}{SPACE}MB")
    )
    return tiles


def _silent(facts: Facts) -> str:
    dead, constant = int(facts.firing.dead.sum()), int(facts.firing.constant.sum())
    return f"{plural(dead, 'bit')} never, {constant:,} always" if dead or constant else "every bit tells nodes apart"


def _about(facts: Facts) -> list[tuple[str, str]]:
    graph, config, metrics = facts.graph, facts.config, facts.metrics
    kind = "sparse" if graph.is_sparse else "dense"
    row = metrics["rows"][0]
    seeds = metrics["seeds"]
    return [
        ("Graph", f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges // 2:,} undirected edges"),
        ("Features", f"{graph.num_features:,} columns ({kind})"),
        ("Classes", f"{graph.num_classes:,}" if graph.labels is not None else "no labels given"),
        ("Code", f"{facts.codes.steps} steps of {facts.codes.channels} channels = {facts.codes.bits:,} bits"),
        ("Encoder", f"{config.encoder.upper()}, {plural(config.layers, 'layer')}, {row['parameters']:,} parameters"),
        ("Neuron", f"{config.neuron}, threshold {config.threshold:.4g}, reset by {_RESETS[config.reset]}"),
        ("Objective", _objective(config)),
        *_chosen(row.get("notes", ())),
        ("Preset", str(metrics.get("preset", "default"))),
        ("Seeds", f"{', '.join(map(str, seeds))} (model and codes of seed {facts.seed})"),
        ("Time", ", ".join(f"{name} {value:.3g} s" for name, value in metrics["seconds"].items())),
    ]


def _chosen(notes: Iterable[str]) -> list[tuple[str, str]]:
    """What the run chose by itself, from "name: what and why"."""
    parts = (note.partition(": ") for note in notes)
    return [(name.capitalize(), what) for name, _, what in parts]


_RESETS = {"subtract": "subtraction", "zero": "setting to zero"}


def _settings(config: Config) -> list[tuple[str, str, str, bool]]:
    """Name, value, default of the preset it comes closest to, and whether they differ."""
    default = dataclasses.asdict(preset("compact" if _is_fitted(config) else "contrastive", ""))
    shown = {name: _value(value) for name, value in default.items()}
    shown |= {name: text for name, text in DEFAULTS.items() if not default[name]}
    return [
        (name, _value(value), shown[name], value != default[name]) for name, value in dataclasses.asdict(config).items()
    ]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# -------------------------------------------------------------------------------------------------- how good it is


def _accuracy(facts: Facts) -> list[Figure]:
    judgement = facts.judgement
    assert judgement is not None
    seeds = len(judgement.accuracies[0].values)
    bars = (
        f"standard deviation over {seeds} seeds; small dots are single seeds"
        if seeds > 1
        else f"95 % interval of an accuracy measured on {judgement.tested:,} test nodes; one seed"
    )
    caption = (
        f"{judgement.probe} probe. Bars: {bars}. The axis does not start at zero; "
        f"always answering the most frequent class scores {percent(judgement.chance)}."
    )
    rows = tuple(
        (figures.NAMES.get(row.name, row.name), percent(row.mean, 2), f"± {100 * row.error:.2f}")
        for row in judgement.accuracies
    )
    first = Figure(
        "Accuracy beside its floors", figures.accuracy(judgement), caption, (), ("codes", "test accuracy", "bar"), rows
    )
    return [first, _curve(facts, judgement)]


def _curve(facts: Facts, judgement: Judgement) -> Figure:
    curve = judgement.curve
    legend: tuple[tuple[str, str], ...] = (("c0", figures.NAMES["trained"]),)
    floor: list[tuple[str, ...]] = [()] * len(curve.bits)
    caption = "Keeping only the first steps of every code, without training again. logreg probe"
    caption += " on a sample of the split." if curve.sampled else f", split of seed {facts.seed}."
    if curve.floor is None:
        caption += " The graph is too large to compute the floor at every width here."
    else:
        legend = (*legend, ("c2 dash1", "random projection, same bits"))
        floor = [(percent(value),) for value in curve.floor]
    names = ("bits", "steps", "these codes", "projection")[: 3 + (curve.floor is not None)]
    rows = tuple(
        (f"{width:,}", str(steps), percent(value), *extra)
        for width, steps, value, extra in zip(curve.bits, curve.steps, curve.trained, floor, strict=True)
    )
    return Figure("Fewer bits", figures.curve(curve), caption, legend, names, rows)


def _verdict(judgement: Judgement) -> str:
    """One sentence that says whether these codes are worth more than what costs nothing."""
    trained, best = judgement.accuracies[0], max(judgement.accuracies[1:], key=lambda row: row.mean)
    gap = trained.mean - best.mean
    side = "above" if gap >= 0 else "below"
    sure = "" if abs(gap) > trained.error + best.error else ", a difference within the error bars"
    return (
        f"These codes reach {percent(trained.mean)}: {abs(100 * gap):.1f} points {side} the best floor "
        f"at the same number of bits ({figures.NAMES.get(best.name, best.name)}, {percent(best.mean)}){sure}."
    )


def _training(facts: Facts) -> list[Figure]:
    points = facts.history
    if not points:
        return []
    shown = points[:: -(-len(points) // TABLE_ROWS)]
    loss = Figure(
        "Loss",
        figures.history(points, "loss", "loss"),
        _LOSSES[facts.config.objective],
        (),
        ("epoch", "loss", "seconds"),
        tuple((str(point["epoch"]), f"{point['loss']:.4f}", f"{point['seconds']:.2f}") for point in shown),
    )
    drawn = [loss]
    if all(point.get("val_accuracy") is not None for point in points):
        drawn.append(
            Figure(
                "Validation accuracy",
                figures.history(points, "val_accuracy", "validation accuracy (%)", percent=True),
                f"Paper's probe after every epoch; epoch {facts.metrics['rows'][0]['epoch']} was kept. "
                "The axis does not start at zero.",
                (),
                ("epoch", "validation accuracy"),
                tuple((str(point["epoch"]), percent(point["val_accuracy"], 2)) for point in shown),
            )
        )
    if all(point.get("gradient_norms") for point in points):
        picture, epochs = figures.gradient_norms(points)
        legend = tuple((f"c{order} dash{order}", f"epoch {epoch}") for order, epoch in enumerate(epochs))
        last = points[-1]["gradient_norms"]
        rows = tuple((str(step), f"{value:.3g}") for step, value in enumerate(last, 1))
        caption = "Norm of the loss's gradient at the current of each step."
        drawn.append(Figure("Gradient norms", picture, caption, legend, ("step", f"norm in epoch {epochs[-1]}"), rows))
    return drawn


# ------------------------------------------------------------------------------------------------- what codes look like


def _firing(facts: Facts) -> list[Figure]:
    data = facts.firing
    caption = (
        "Mean over nodes and channels; bars reach from the 10th to the 90th percentile of channels. Shaded: 20 to "
        f"60{SPACE}%, neither silent nor saturated."
    )
    rows = tuple(
        (str(step), percent(float(rates.mean())), str(dead), str(constant))
        for step, (rates, dead, constant) in enumerate(zip(data.rates, data.dead, data.constant, strict=True), 1)
    )
    steps = Figure("Firing rate by step", figures.firing(data), caption, (), ("step", "rate", "never", "always"), rows)
    picture, counts = figures.bit_rates(data)
    dead, constant = int(data.dead.sum()), int(data.constant.sum())
    caption = f"Of {facts.codes.bits:,} bits {dead:,} never fire and {constant:,} always fire"
    caption += ", which says nothing about a node." if dead or constant else "."
    caption += " A bit says most where it is 1 in half of the nodes."
    table = tuple((name, f"{count:,}") for name, count in counts)
    return [steps, Figure("Firing rate of every bit", picture, caption, (), ("rate", "bits"), table)]


def _raster_note(facts: Facts) -> str:
    shown, channels = facts.raster.channels, facts.codes.channels
    which = "all bits" if shown == channels else f"the first {shown} of {channels} channels of each step"
    order = "sorted by class" if facts.graph.labels is not None else "in file order"
    return f"{plural(len(facts.raster.rows), 'node')}, {order}, one a row; {which} from left to right, steps numbered."


def _example(facts: Facts, example: Any) -> dict[str, Any]:
    own = facts.label(example.row)
    return {
        "id": _id(facts, example.row),
        "mark": figures.mark(own),
        "label": facts.class_name(own),
        "nearest": [
            {
                "id": _id(facts, neighbour.row),
                "mark": figures.mark(facts.label(neighbour.row)),
                "label": facts.class_name(facts.label(neighbour.row)),
                "same": own >= 0 and facts.label(neighbour.row) == own,
                "distance": f"{neighbour.distance:,}",
                "linked": neighbour.linked,
            }
            for neighbour in example.nearest
        ],
    }


# -------------------------------------------------------------------------------------------------------- what it costs


def _energy(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Rule, energy of one pass, energy a node, what is charged."""
    return [
        (rule, joules(value), joules(value / len(facts.codes)), RULES.get(rule, ""))
        for rule, value in facts.joules.items()
    ]


def _sizes(facts: Facts) -> Figure:
    nodes, width = facts.codes.packed.shape
    named = {
        "codes, packed bits": nodes * width / 1e6,
        "the same width as float32": nodes * facts.codes.bits * 4 / 1e6,
        "input features as float32": nodes * facts.graph.num_features * 4 / 1e6,
    }
    ratio = np.divide(*(list(named.values())[1::-1]))
    caption = f"Packed codes are {ratio:.3g} times smaller than float32 of the same width."
    caption += f" 1{SPACE}MB is 1,000,000 bytes."
    rows = tuple((name, f"{value:,.3f} MB") for name, value in named.items())
    return Figure("Size", figures.sizes(named), caption, (), ("what", "size"), rows)
