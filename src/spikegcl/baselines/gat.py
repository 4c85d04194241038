"""GAT: two layers of attention over neighbours, trained on labels (Velickovic et al., ICLR 2018).

    z = dropout(x) W,  heads side by side       out_i = sum_j dropout(a_ij) dropout(z_j) + b,  a as in :mod:`attention`

The first layer has ``heads`` heads of ``channels`` side by side and an ELU behind it; the second averages its heads
into the logits. Dropout acts on the input and on the attention and, with ``projected_dropout``, on z.
Training stops when neither accuracy nor loss on the validation nodes has improved for ``patience`` epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spikegcl import noise
from spikegcl.baselines import Fitted, Method, Shape
from spikegcl.baselines.attention import attend
from spikegcl.baselines.common import fit_classifier, initialise
from spikegcl.baselines.inputs import Inputs, dropout, make_inputs
from spikegcl.energy import Layer, Operations
from spikegcl.propagate import make_operator
from spikegcl.settings import Settings
from spikegcl.training import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from spikegcl.graph import Graph, Split
    from spikegcl.propagate import Operator
    from spikegcl.training import Epoch


@dataclass(frozen=True)
class GATSettings(Settings):
    heads: int = 8  # the authors'
    channels: int = 8  # per head, the authors'
    out_heads: int = 1  # the authors', but 8 on PubMed
    dropout: float = 0.6  # the authors', on the input of each layer
    attention_dropout: float = 0.6  # the authors'
    projected_dropout: float = 0.0  # the authors' code has 0.6 here too: presets/gat.toml says why not
    lr: float = 5e-3  # the authors'
    weight_decay: float = 5e-4  # the authors', on everything
    epochs: int = 1000  # the authors allow 100 000; patience ends a run long before
    patience: int = 100  # the authors'
    row_normalise: bool = True  # the authors'

    RANGES: ClassVar = {
        "heads": (1, 1024),
        "channels": (1, 65536),
        "out_heads": (1, 1024),
        "dropout": (0, 0.99),
        "attention_dropout": (0, 0.99),
        "projected_dropout": (0, 0.99),
        "epochs": (0, 10**9),
        "patience": (0, 10**9),
    }


class Attention(nn.Module):
    """One layer: x (N x d) -> N x heads*channels, or N x channels if the heads are averaged."""

    def __init__(self, width_in: int, heads: int, channels: int, *, average: bool) -> None:
        super().__init__()
        self.heads, self.average = heads, average
        self.weight = nn.Parameter(torch.empty(width_in, heads * channels))
        self.receiver = nn.Parameter(torch.empty(heads, channels))
        self.sender = nn.Parameter(torch.empty(heads, channels))
        self.bias = nn.Parameter(torch.zeros(channels if average else heads * channels))

    def forward(self, operator: Operator, x: Tensor | Inputs, rate: float, attention_rate: float, key: int) -> Tensor:
        """x has been dropped already; ``rate`` drops z."""
        z = x @ self.weight
        heads = z.view(len(z), self.heads, -1)
        scores = (heads * self.receiver).sum(2), (heads * self.sender).sum(2)
        z = attend(operator, dropout(z, rate, noise.derive(key, "features")), *scores, attention_rate, key)
        return (z.view_as(heads).mean(1) if self.average else z) + self.bias


class GAT(nn.Module):
    def __init__(self, features: int, classes: int, settings: GATSettings, seed: int) -> None:
        super().__init__()
        self.settings = settings
        self.first = Attention(features, settings.heads, settings.channels, average=False)
        self.second = Attention(settings.heads * settings.channels, settings.out_heads, classes, average=True)
        initialise(self, noise.generator(seed, "gat"))

    def forward(self, operator: Operator, x: Inputs, key: int | None = None) -> Tensor:
        """Logits, N x C; with a key, those of a training pass with dropout."""
        on = key is not None
        rate = self.settings.dropout * on
        rates = (self.settings.projected_dropout * on, self.settings.attention_dropout * on)
        keys = [noise.derive(key or 0, place) for place in range(4)]
        hidden = nn.functional.elu(self.first(operator, x.dropout(rate, keys[0]), *rates, keys[1]))
        logits: Tensor = self.second(operator, dropout(hidden, rate, keys[2]), *rates, keys[3])
        return logits


def fit(
    graph: Graph,
    settings: GATSettings,
    *,
    seed: int = 0,
    split: Split | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    device: str = "cpu",
) -> Fitted:
    clock = Clock()
    operator = make_operator(graph, "sum", device)
    inputs = make_inputs(graph, row_normalise=settings.row_normalise, device=device)
    model = GAT(graph.num_features, graph.num_classes, settings, seed).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)

    def forward(epoch: int | None) -> Tensor:
        logits: Tensor = model(operator, inputs, None if epoch is None else noise.derive(seed, "dropout", epoch))
        return logits

    return fit_classifier(
        model, forward, optimiser, graph, settings, split=split, epochs=settings.epochs, patience=settings.patience,
        clock=clock, on_epoch=on_epoch,
    )  # fmt: skip


def _layers(shape: Shape, settings: GATSettings) -> tuple[tuple[int, int, int], ...]:
    """Input width, heads and channels per head of both layers."""
    hidden = settings.heads * settings.channels
    return (shape.features, settings.heads, settings.channels), (hidden, settings.out_heads, shape.classes)


def parameters(shape: Shape, settings: GATSettings) -> int:
    """Per layer d K F + 2 K F, and as many biases as outputs."""
    biases = settings.heads * settings.channels + shape.classes
    return biases + sum((width + 2) * heads * channels for width, heads, channels in _layers(shape, settings))


def operations(shape: Shape, settings: GATSettings, spikes: tuple[int, ...] = ()) -> Operations:
    """Beside the product and the sum over edges: two scores a node and channel, one weighting an edge and head."""
    return Operations(
        tuple(
            Layer(
                f"layer {number}",
                shape.nodes * (width + 2) * heads * channels + shape.entries * heads,
                shape.entries * heads * channels,
            )
            for number, (width, heads, channels) in enumerate(_layers(shape, settings), 1)
        )
    )


METHOD = Method("gat", "GAT", GATSettings, fit, parameters, operations, unsupervised=False)
