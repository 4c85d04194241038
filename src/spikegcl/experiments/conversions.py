"""Cases of the paper's theorem to measure: random networks on parts of a graph, a trained network on all of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order
from torch.nn.functional import cross_entropy

from spikegcl import noise
from spikegcl.baselines.inputs import make_inputs
from spikegcl.conversion import Conversion, convert, normalised_adjacency
from spikegcl.datasets import make_split
from spikegcl.errors import LabelError
from spikegcl.propagate import make_operator, propagate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikegcl.experiments import Cell
    from spikegcl.experiments.measures import OnEpoch
    from spikegcl.graph import Graph, Split

    Floats = NDArray[np.float64]

KAPPA = 2.0
STEPS = (4, 8, 16, 32, 64)
DEPTHS = (1, 2, 3)
KINDS = {
    "positive": "no weight is negative, no current exceeds the threshold",
    "signed": "weights of both signs, anywhere",
    "late": "as positive, but the first layer's weights of the second half of the steps are negative",
    "strong": "as positive, but currents reach three thresholds",
    "weak": "as positive, always with one layer, large features and small weights",
}


def random_conversions(cell: Cell, graph: Graph, on_epoch: OnEpoch, *, cases: int) -> dict[str, Any]:
    """Conversions of random networks on random neighbourhoods: every kind, number of steps and of layers in turn."""
    found = []
    for number, (layers, steps, kind) in zip(range(cases), itertools.cycle(itertools.product(DEPTHS, STEPS, KINDS))):
        rng = np.random.default_rng(noise.derive(cell.seed, "conversion", cell.dataset, number))
        done = random_conversion(graph, kind, steps, layers, rng)
        found.append({"kind": kind, "nodes": len(done.rates), **_facts(done)})
    return {"kappa": KAPPA, "cases": found}


def random_conversion(graph: Graph, kind: str, steps: int, layers: int, rng: np.random.Generator) -> Conversion:
    """A random ReLU network of one of ``KINDS`` on 8 to 40 neighbouring nodes, with as many features as the theorem
    has (width times steps), converted."""
    nodes = breadth_first_order(graph.adjacency, rng.integers(graph.num_nodes), return_predecessors=False)
    width, layers = int(rng.integers(2, 9)), 1 if kind == "weak" else layers
    part = graph.subgraph(nodes[: rng.integers(8, 41)])
    features = rng.random((part.num_nodes, width * steps))
    operator, _ = normalised_adjacency(part)
    draw = rng.standard_normal if kind == "signed" else rng.random
    first = draw((steps, width, width))
    if kind == "late":
        first[steps // 2 :] *= -1
    currents = np.einsum("ntc,tcm->tnm", (operator @ features).reshape(-1, steps, width), steps * first)
    first *= (3 if kind == "strong" else 1) / np.abs(currents).max()
    later = [draw((width, width)) for _ in range(layers - 1)]
    reach = float(operator.sum(1).max())
    weights = [first.reshape(-1, width), *(one / (reach * np.abs(one).sum(0).max()) for one in later)]
    if kind == "weak":
        features, weights = features * 100, [one / 100 for one in weights]
    return convert(part.with_features(features), weights, steps)


def trained_conversion(
    cell: Cell, graph: Graph, on_epoch: OnEpoch, *, steps: list[int], width: int, layers: int, epochs: int
) -> dict[str, Any]:
    """A ReLU network trained to classify the nodes, converted at several numbers of steps (``points``).

    Its weights are scaled so that no activation exceeds 1, the highest rate there is; that changes no prediction.
    """
    split = make_split(graph, cell.seed)
    weights, readout = train_network(graph, split, width=width, layers=layers, epochs=epochs, seed=cell.seed)
    points: dict[int, dict[str, Any]] = {}
    for count in (count for count in steps if count <= graph.num_features):
        done = convert(graph, weights, count)
        points[count] = {
            **_facts(done),
            "mean error": float(np.linalg.norm(done.rates - done.target, axis=1).mean()),
            "mean target": float(np.linalg.norm(done.target, axis=1).mean()),
            **{
                f"test accuracy, {name}": float(
                    ((values @ readout).argmax(1) == graph.labels)[split.test].mean()
                )
                for name, values in (("rates", done.rates), ("network", done.target))
            },
        }  # fmt: skip
    return {"kappa": KAPPA, "split": split.hash, "points": points}


def train_network(
    graph: Graph, split: Split, *, width: int, layers: int, epochs: int, seed: int
) -> tuple[list[Floats], Floats]:
    """Weights of a ReLU graph network without biases (activations at most 1), and of the linear map to classes."""
    if graph.labels is None:
        raise LabelError(f"{graph.name} has no labels to train a network on")
    operator, inputs = make_operator(graph), make_inputs(graph)
    rng = noise.generator(seed, "relu network")
    sizes = [graph.num_features, *[width] * layers, graph.num_classes]
    weights = [
        torch.nn.init.xavier_uniform_(torch.empty(rows, columns), generator=rng).requires_grad_()
        for rows, columns in itertools.pairwise(sizes)
    ]
    optimiser = torch.optim.Adam(weights, lr=0.01, weight_decay=5e-4)
    train, labels = torch.from_numpy(split.train), torch.from_numpy(graph.labels[split.train])

    def hidden() -> list[torch.Tensor]:
        activations = [torch.relu(propagate(operator, inputs @ weights[0]))]
        for weight in weights[1:-1]:
            activations.append(torch.relu(propagate(operator, activations[-1] @ weight)))
        return activations

    for _ in range(epochs):
        optimiser.zero_grad()
        cross_entropy((hidden()[-1] @ weights[-1])[train], labels).backward()
        optimiser.step()
    with torch.no_grad():
        peaks = [1.0, *(max(float(one.max()), 1e-12) for one in hidden())]
    scaled = [
        weight.detach().double().numpy() * before / peak
        for weight, (before, peak) in zip(weights[:-1], itertools.pairwise(peaks), strict=True)
    ]
    return scaled, weights[-1].detach().double().numpy()


def _facts(done: Conversion) -> dict[str, Any]:
    return {
        "layers": done.layers,
        "width": done.width,
        "steps": done.steps,
        "degree": done.degree,
        "ratio": done.ratio,
        "low": done.low,
        "high": done.high,
        "error": done.error,
        "bound": done.bound(KAPPA),
        "fails": done.fails(KAPPA),
    }
