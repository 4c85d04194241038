"""What the spiking classifiers share: a pass over the nodes that matter, its spikes, and training with it.

A spiking pass takes T steps, so it is made only for the nodes that are asked for: those with training labels while
training, the validation nodes after an epoch, all nodes once at the end, where the spikes are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from spikegcl.baselines import Fitted
from spikegcl.baselines.common import Validated, labels_of, train_loop
from spikegcl.energy import Layer, Operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.propagate import Operator
    from spikegcl.settings import Settings
    from spikegcl.training import Clock, Epoch

Prepared = TypeVar("Prepared")


class Pass(NamedTuple):
    """One pass over n nodes: logits (n x C), and the spikes fired by each layer (rows) at each step (int64, L x T)."""

    logits: Tensor
    spikes: Tensor


def count_spikes(spikes: Tensor) -> Tensor:
    """Spikes of each step (int64, T, on the CPU) in trains T x n x H."""
    return spikes.detach().sum(2).long().sum(1).cpu()


def count_layers(layers: Sequence[Layer], spikes: Sequence[Sequence[int]]) -> Operations:
    """``layers`` of a pass, and one more for each row of ``spikes``: what a layer of neurons fired at each step."""
    neurons = (Layer(f"neurons {number}", spikes=sum(row)) for number, row in enumerate(spikes, 1))
    per_step = tuple(sum(column) for column in zip(*spikes, strict=True))
    return Operations((*layers, *neurons), spiking=True, spikes_per_step=per_step)


def to_scipy(operator: Operator) -> sp.csr_array:
    """P of an operator on the CPU as a sparse matrix, of which rows can be taken."""
    return sp.csr_array(tuple(part.numpy() for part in (operator.values, operator.indices, operator.indptr)))


def fit_spiking(
    model: nn.Module,
    prepare: Callable[[NDArray[np.int64]], Prepared],
    forward: Callable[[Prepared, int | None], Pass],
    optimiser: torch.optim.Optimizer,
    graph: Graph,
    settings: Settings,
    layers: Sequence[Layer],
    *,
    split: Split | None,
    epochs: int,
    clock: Clock,
    patience: int = 0,
    block: int | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Fitted:
    """Train on the training nodes, keep the epoch that is best on the validation nodes, predict all nodes.

    ``prepare(nodes)`` is what a pass over ``nodes`` needs, made once; ``forward(prepared, epoch)`` is the training pass
    of that epoch, ``forward(prepared, None)`` the one without dropout. The last pass takes ``block`` nodes at a time
    (default: all). ``layers`` are the operations of a pass over the whole graph, to which its spikes are added.
    """
    split, targets, truth = labels_of(graph, split, next(model.parameters()).device)
    train, val = prepare(split.train), prepare(split.val)

    @torch.no_grad()
    def validate() -> Validated:
        model.eval()
        return Validated.of(forward(val, None).logits, truth)

    outcome = train_loop(
        model, optimiser, lambda epoch: loss(forward(train, epoch).logits, targets), epochs=epochs, clock=clock,
        patience=patience, select="validation", validate=validate, on_epoch=on_epoch,
    )  # fmt: skip
    nodes = np.arange(graph.num_nodes)
    with torch.no_grad():
        model.eval()
        starts = range(0, len(nodes), block or len(nodes))
        passes = [forward(prepare(nodes[start : start + starts.step]), None) for start in starts]
    spikes = torch.stack([part.spikes for part in passes]).sum(0).tolist()
    clock.lap("embed")
    operations = count_layers(layers, spikes)
    return Fitted(
        settings, predictions=torch.cat([part.logits for part in passes]).argmax(1).cpu().numpy(),
        history=outcome.history, epoch=outcome.epoch, select=outcome.select, spikes=operations.spikes_per_step,
        operations=operations, seconds=clock.seconds,
    )  # fmt: skip
