"""Counts that may stand behind printed parameters and energies though no settings of the method give them.

Each is a guess at what was counted; only the shape of the graph goes in. Where one gives a whole printed row it is the
best explanation there is, and no more than that: the paper states none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spikegcl.energy import PAPER, binary_layer

if TYPE_CHECKING:
    from spikegcl.baselines import Shape


def parameters(method: str, shape: Shape) -> dict[str, float]:
    """Thousands of parameters, by formula."""
    if method not in ("gc-snn", "ga-snn"):
        return {}
    return {f"two layers of {width}, linear head": _two_layers(shape, width) / 1e3 for width in (128, 256)}


def millijoules(method: str, shape: Shape) -> dict[str, float]:
    """Energy of one pass, by formula, at the paper's price of a multiply-accumulate."""
    nodes, edges, features, _ = shape
    counts: dict[str, dict[str, float]] = {
        "bi-gcn": {f"one 1-bit layer, {width} wide": _binary(shape, width) for width in (256, 512)},
        "dgi": {"256 (N d + E)": 256 * (nodes * features + edges)},
        "cca-ssg": {"N (256 d + 256²)": nodes * (256 * features + 256**2)},
        "bgrl": {"N (256 d + 3 · 256²)": nodes * (256 * features + 3 * 256**2)},
        "sugrl": {"256 N d + 128 E": 256 * nodes * features + 128 * edges},
        "ggd": {"256 (N d + E)": 256 * (nodes * features + edges)},
    }
    return {text: 1e3 * PAPER.mac * count for text, count in counts.get(method, {}).items()}


def _two_layers(shape: Shape, width: int) -> int:
    """Biases included; no scales of a normalisation, no attention."""
    return (shape.features + width + shape.classes) * width + 2 * width + shape.classes


def _binary(shape: Shape, width: int) -> float:
    layer = binary_layer("", shape.nodes, shape.edges, width, width)
    return layer.products + layer.aggregation
