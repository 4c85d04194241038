"""The paper's theorem, executed: a spiking network whose firing rates approach the output of a ReLU graph network.

For a network z_l = relu(P z_(l-1) W_l), z_0 = X, without biases, the proof builds a network of IF neurons with
subtractive reset. Step t of its first layer reads group t of the columns of X:

    currents    I_1(t) = P X_t (T V W_1,t)          I_l(t) = P S_(l-1)(t) (V W_l)          V the threshold
    claim       || mean_t S_L(t) - z_L ||_2  <=  sqrt(m) kappa r^L / T                     at every node

with m the width of the layers, D the largest degree, nu the largest norm of a W_l and r = sqrt(1 + D) nu. (The paper
writes sqrt(d / T) for sqrt(m), and scales the first layer by T, which is the same at its V = 1.)

What the proof needs, beyond its three assumptions on D, nu and the membrane, is checked by :meth:`Conversion.fails`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from spikegcl import neurons
from spikegcl.errors import ConfigError
from spikegcl.groups import make_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Graph

    Floats = NDArray[np.float64]

ASSUMPTIONS = ("membrane", "inputs", "series")


@dataclass(frozen=True, eq=False)
class Conversion:
    """What the spiking network did on a graph, beside the network it was made from.

    ==============  ========================================================================================
    ``rates``       float64, N x m: spikes of the last layer per step
    ``target``      float64, N x m: z_L, what the rates stand for
    ``steps``       T
    ``low, high``   smallest and largest membrane after a reset, over all layers and steps, in thresholds
    ``degree``      D, the largest number of neighbours (weighted edges: their largest sum)
    ``norm``        nu, the largest spectral norm of a weight matrix
    ``width``       m, the largest width of a layer
    ``layers``      L
    ==============  ========================================================================================
    """

    rates: Floats
    target: Floats
    steps: int
    low: float
    high: float
    degree: float
    norm: float
    width: int
    layers: int

    @property
    def error(self) -> float:
        """The largest distance between rates and target at a node."""
        return float(np.linalg.norm(self.rates - self.target, axis=1).max())

    @property
    def ratio(self) -> float:
        """r = sqrt(1 + D) nu: by how much an error may grow from layer to layer."""
        return math.sqrt(1 + self.degree) * self.norm

    def bound(self, kappa: float) -> float:
        """The bound of the theorem."""
        return math.sqrt(self.width) * kappa * self.ratio**self.layers / self.steps

    def fails(self, kappa: float) -> list[str]:
        """Which of ``ASSUMPTIONS`` do not hold; if all do, the error is within the bound.

        - membrane: it never falls below -kappa thresholds (the paper's third assumption). A unit whose input is
          negative on the whole breaks it as T grows; one whose negative input comes late has fired by then.
        - inputs: the membrane never stays above the threshold, which the proof takes for granted. A neuron fires once
          a step, so a current of more than the threshold is not worked off: rates end at 1.
        - series: 1 + r + ... + r^(L-1) <= r^L, the last line of the proof. It needs r >= 1.62 for L = 2.
        """
        kept = {
            "membrane": self.low >= -kappa,
            "inputs": self.high <= 1,
            "series": sum(self.ratio**layer for layer in range(self.layers)) <= self.ratio**self.layers,
        }
        return [name for name in ASSUMPTIONS if not kept[name]]


def convert(graph: Graph, weights: Sequence[Any], steps: int, *, threshold: float = 1.0) -> Conversion:
    """Run the spiking network of the proof on ``graph``, and the ReLU network it is made from.

    ``weights`` are the matrices W_1 (d x m), W_2, ... of the ReLU network, trained or not, as arrays. The feature
    columns are cut into ``steps`` groups of neighbours that use every column.

    >>> from spikegcl.graph import build_graph
    >>> graph = build_graph([[0], [1]], np.ones((2, 4)))
    >>> done = convert(graph, [np.full((4, 2), 0.1)], steps=4)
    >>> done.target[0], done.rates[0]
    (array([0.4, 0.4]), array([0.25, 0.25]))
    >>> done.error <= done.bound(kappa=1.2), done.fails(kappa=1.2)
    (False, ['series'])
    """
    matrices = [np.asarray(weight, np.float64) for weight in weights]
    widths = [graph.num_features, *(matrix.shape[-1] for matrix in matrices)]
    if not matrices or [matrix.shape for matrix in matrices] != list(itertools.pairwise(widths)):
        shapes = ", ".join(str(matrix.shape) for matrix in matrices) or "none"
        raise ConfigError(f"weights must be matrices that follow each other from {widths[0]} columns on, got {shapes}")
    operator, degree = normalised_adjacency(graph)
    groups = make_groups(graph, steps)
    target = np.asarray(operator @ (graph.features @ matrices[0])).clip(min=0)
    spikes, low, high = np.empty(0), 0.0, 0.0
    for number, matrix in enumerate(matrices):
        if number == 0:
            columns = np.split(groups.order, groups.bounds[1:-1])
            inputs = [graph.features[:, group] @ (steps * threshold * matrix[group]) for group in columns]
        else:
            inputs = [fired @ (threshold * matrix) for fired in spikes]
            target = np.asarray(operator @ (target @ matrix)).clip(min=0)
        currents = np.stack([np.asarray(operator @ current) for current in inputs])
        neuron = neurons.Neuron("IF", threshold, "subtract")
        spikes = neurons.run(neuron, torch.from_numpy(currents))[0].numpy()
        membrane = currents.cumsum(0) / threshold - spikes.cumsum(0)  # the proof's lemma
        low, high = min(low, float(membrane.min())), max(high, float(membrane.max()))
    norm = max(float(np.linalg.norm(matrix, 2)) for matrix in matrices)
    width, layers = max(widths[1:]), len(matrices)
    return Conversion(spikes.mean(0), target, steps, low, high, degree, norm, width, layers)


def normalised_adjacency(graph: Graph) -> tuple[sp.csr_array, float]:
    """P = D^-1/2 (A + I) D^-1/2 in double precision, and the largest degree of A."""
    adjacency = sp.csr_array(graph.adjacency + sp.eye_array(graph.num_nodes), dtype=np.float64)
    degrees = adjacency.sum(1)
    scale = sp.diags_array(1 / np.sqrt(degrees))
    return sp.csr_array(scale @ adjacency @ scale), float(degrees.max()) - 1
