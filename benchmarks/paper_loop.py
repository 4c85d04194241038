"""The comparator: the paper's pseudocode written plainly with torch_geometric layers.

What a competent user would write: one time step after another, each convolution normalises the graph itself, features
are dense, the activations of all steps stay alive until the backward passes. Same hyperparameters as our ``paper``
presets. ``layout`` is how the graph is handed to GCNConv: ``edge_index`` (PyG's documented default) or ``sparse`` (a
torch CSR matrix, which PyG multiplies several times faster: the authors' choice). Used by benchmarks only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.utils import dropout_edge, to_torch_csr_tensor

from spikegcl.foreign import to_pyg

if TYPE_CHECKING:
    from spikegcl.config import Config
    from spikegcl.graph import Graph


class Heaviside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x >= 0).float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.alpha * x)
        return grad * ctx.alpha * s * (1 - s), None


class PaperLoop(nn.Module):
    def __init__(self, config: Config, graph: Graph, layout: str) -> None:
        super().__init__()
        self.config, self.layout = config, layout
        data = to_pyg(graph)
        self.x, self.edge_index = data.x, data.edge_index
        sizes = [part.shape[1] for part in self.x.chunk(config.steps, 1)]
        width = config.channels
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes)
        self.first = nn.ModuleList(GCNConv(size, width) for size in sizes)
        self.norm, self.second = nn.BatchNorm1d(width), GCNConv(width, width)
        self.tau = nn.Parameter(torch.tensor(1.0))
        self.head = nn.Linear(width, config.head_width, bias=False)

    def adjacency(self, edge_index: Tensor) -> Tensor:
        if self.layout == "edge_index":
            return edge_index
        return to_torch_csr_tensor(edge_index, size=(len(self.x), len(self.x)))

    def forward(self, x: Tensor, adjacency: Tensor) -> list[Tensor]:
        config, membrane, spikes = self.config, 0.0, []
        for t, part in enumerate(x.chunk(config.steps, 1)):
            h = self.norms[t](F.dropout(part, config.dropout, self.training))
            h = F.elu(self.first[t](h, adjacency))
            h = self.norm(F.dropout(h, config.dropout, self.training))
            current = self.second(h, adjacency)
            charged = membrane + (current - membrane) / self.tau
            spike = Heaviside.apply(charged - config.threshold, config.alpha)
            membrane = (charged - config.threshold * spike).detach()
            spikes.append(spike)
        return spikes

    def train_epoch(self, optimiser: torch.optim.Optimizer) -> float:
        self.train()
        config = self.config
        optimiser.zero_grad()
        good = self(self.x, self.adjacency(self.edge_index))
        edges = dropout_edge(self.edge_index, config.edge_drop)[0]
        order = torch.randperm(self.x.shape[1]) if config.shuffle else torch.arange(self.x.shape[1])
        bad = self(self.x[:, order], self.adjacency(edges))
        total = 0.0
        for positive, negative in zip(good, bad, strict=True):
            scores = self.head(positive).sum(1), self.head(negative).sum(1)
            loss = F.margin_ranking_loss(*scores, -torch.ones(len(self.x)), margin=config.margin)
            loss.backward()
            total += float(loss.detach())
        optimiser.step()
        return total

    @torch.no_grad()
    def embed(self) -> Tensor:
        self.eval()
        return torch.cat(self(self.x, self.adjacency(self.edge_index)), 1)


def paper_probe(z: Tensor, y: Tensor, split) -> float:
    """One linear layer, AdamW, 100 full-batch steps, test accuracy at the best validation step."""
    layer = nn.Linear(z.shape[1], int(y.max()) + 1)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=5e-4)
    train, val, test = (torch.from_numpy(part) for part in (split.train, split.val, split.test))
    best = (-1.0, 0.0)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(layer(z[train]), y[train]).backward()
        optimiser.step()
        with torch.no_grad():
            right = layer(z).argmax(1) == y
        best = max(
            best, (float(right[val].float().mean()), float(right[test].float().mean())), key=lambda pair: pair[0]
        )
    return best[1]


def train_and_probe(graph: Graph, config: Config, split, layout: str) -> tuple[float, float]:
    """The whole run: every epoch is followed by an embedding and the paper's probe. Returns accuracy and seconds."""
    started = time.perf_counter()
    model = PaperLoop(config, graph, layout)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    labels = torch.from_numpy(graph.labels)
    accuracy = 0.0
    for _ in range(config.epochs):
        model.train_epoch(optimiser)
        accuracy = paper_probe(model.embed(), labels, split)
    return accuracy, time.perf_counter() - started
