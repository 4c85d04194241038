"""A method of your own in one file: SGC, logistic regression on features that were propagated twice.

logits = P P X W + b,   P = D^-1/2 (A + I) D^-1/2
"""

from dataclasses import dataclass

import torch
from torch import nn

from spikegcl import load_dataset, noise
from spikegcl.baselines import Method, register
from spikegcl.baselines.common import fit_classifier, initialise
from spikegcl.baselines.inputs import make_inputs
from spikegcl.energy import Layer, Operations
from spikegcl.propagate import make_operator, propagate
from spikegcl.protocol import run_seed
from spikegcl.settings import Settings
from spikegcl.training import Clock


@dataclass(frozen=True)
class SGCSettings(Settings):
    hops: int = 2  # the authors'
    lr: float = 0.2  # the authors'
    weight_decay: float = 1e-5  # small: two hops are smooth already
    epochs: int = 100  # the authors'


class SGC(nn.Module):
    def __init__(self, features, classes, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, classes))
        self.bias = nn.Parameter(torch.zeros(classes))
        initialise(self, noise.generator(seed, "sgc"))

    def forward(self, operator, inputs, hops):
        x = inputs @ self.weight  # multiplied first: C columns travel instead of d, and sparse features stay sparse
        for _ in range(hops):
            x = propagate(operator, x)
        return x + self.bias


def fit(graph, settings, *, seed=0, split=None, on_epoch=None, device="cpu"):
    clock = Clock()
    operator = make_operator(graph, device=device)
    inputs = make_inputs(graph, row_normalise=True, device=device)
    model = SGC(graph.num_features, graph.num_classes, seed).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    return fit_classifier(
        model, lambda epoch: model(operator, inputs, settings.hops), optimiser, graph, settings,
        split=split, epochs=settings.epochs, clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def parameters(shape, settings):
    return (shape.features + 1) * shape.classes


def operations(shape, settings, spikes=()):
    products = shape.nodes * shape.features * shape.classes
    return Operations((Layer("classifier", products, settings.hops * shape.entries * shape.classes),))


METHOD = register(Method("sgc", "SGC", SGCSettings, fit, parameters, operations, unsupervised=False))

if __name__ == "__main__":
    row = run_seed(load_dataset("digits"), SGCSettings(), seed=0, method="sgc").row
    print(f"{METHOD.title}: test accuracy {100 * row['test_accuracy']:.1f} %, {row['parameters']} parameters")
