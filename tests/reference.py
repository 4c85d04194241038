"""The model in a few lines of dense torch: what the fast path has to agree with."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def dense_operator(graph, kind="gcn"):
    adjacency = torch.from_numpy(graph.adjacency.toarray())
    if kind == "mean":
        degree = adjacency.sum(1, keepdim=True)
        return torch.where(degree > 0, adjacency / degree.clamp(min=1e-30), 0.0)
    adjacency = adjacency + torch.eye(len(adjacency))
    root = adjacency.sum(1).rsqrt()
    return root[:, None] * adjacency * root[None]


def dense_features(graph):
    x = graph.features
    return torch.from_numpy(x.toarray() if graph.is_sparse else x)


def batch_norm(x, norm):
    return F.batch_norm(x, None, None, norm.gamma, norm.beta, training=True)


def convolve(layer, p, x, rows):
    z = x @ layer.weight[rows]
    if layer.kind == "gat":
        scores = F.leaky_relu((z @ layer.attention[0])[:, None] + (z @ layer.attention[1])[None], 0.2)
        return scores.masked_fill(p == 0, -torch.inf).softmax(1) @ z
    return p @ z + (x @ layer.weight_self[rows] if layer.kind == "sage" else 0)


def dense_currents(model, p, x, order):
    """Currents of all steps (T x N x H) of a view with features x, columns in ``order``, adjacency p, no dropout.

    Also the smallest variance that a batch norm divided by: single precision is worth little where that is tiny.
    """
    encoder = model.encoder
    smallest = 1.0
    bounds = encoder.groups.bounds
    h = x[:, torch.from_numpy(order)]
    if encoder.input_norm is not None:
        h = batch_norm(h, encoder.input_norm)
    out = []
    for t in range(encoder.groups.steps):
        part, rows = h[:, bounds[t] : bounds[t + 1]], slice(bounds[t], bounds[t + 1])
        z = convolve(encoder.first, p, part, rows) + encoder.first.bias[t]
        for layer, shared in enumerate(encoder.shared):
            a = {"elu": F.elu, "relu": torch.relu, "none": lambda v: v}[encoder.activation](z)
            if len(encoder.norms):
                smallest = min(smallest, float(a.detach().var(0, correction=0).min()))
                a = batch_norm(a, encoder.norms[layer])
            z = convolve(shared, p, a, slice(None)) + shared.bias[0]
        out.append(z)
    return torch.stack(out), smallest
