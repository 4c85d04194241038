"""What the trained methods share: layers, seeded initialisation, the training loop, classifiers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from spikegcl.baselines import Fitted
from spikegcl.baselines.inputs import Inputs
from spikegcl.errors import LabelError, TrainingError
from spikegcl.memory import reuse_freed_memory
from spikegcl.propagate import Operator, propagate
from spikegcl.training import Clock, Epoch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from spikegcl.graph import Graph, Split
    from spikegcl.settings import Settings


class Linear(nn.Module):
    """x W + b, or x W: N x d_in -> N x d_out. Unlike torch's, it also takes the :class:`Inputs` of a view."""

    def __init__(self, width_in: int, width_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out)) if bias else None

    def forward(self, x: Tensor | Inputs) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Convolution(nn.Module):
    """A graph convolution P x W + b: N x d_in -> N x d_out. x is a tensor or the :class:`Inputs` of a view.

    Whichever is narrower, x or x W, travels along the edges; sparse features are always multiplied first.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, operator: Operator, x: Tensor | Inputs) -> Tensor:
        if self._propagates_first(x):
            return propagate(operator, _dense(x)) @ self.weight + self.bias
        return propagate(operator, x @ self.weight) + self.bias

    def contrast(self, operator: Operator, x: Tensor | Inputs, order: Tensor) -> tuple[Tensor, Tensor]:
        """The convolution of x, and that of x with its rows permuted: node i gets the features of node order[i].

        P (x[order]) W = P (x W)[order], so the two share the product with W.
        """
        if self._propagates_first(x):
            x = _dense(x)
            return self(operator, x), self(operator, x[order])
        z = x @ self.weight
        return propagate(operator, z) + self.bias, propagate(operator, z[order]) + self.bias

    def _propagates_first(self, x: Tensor | Inputs) -> bool:
        return self.weight.shape[0] < self.weight.shape[1] and not (isinstance(x, Inputs) and x.is_sparse)


def _dense(x: Tensor | Inputs) -> Tensor:
    return x.dense() if isinstance(x, Inputs) else x


def initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Glorot-uniform matrices and zero biases, drawn in the order of the parameters; the rest stays as it is made."""
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            bound = math.sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))
            nn.init.uniform_(parameter, -bound, bound, generator=rng)
        elif name.rpartition(".")[2] == "bias":
            nn.init.zeros_(parameter)


class Validated(NamedTuple):
    """Accuracy and loss on the validation nodes after an epoch."""

    accuracy: float
    loss: float

    @classmethod
    def of(cls, logits: Tensor, truth: Tensor) -> Validated:
        accuracy = (logits.argmax(1) == truth).float().mean()
        return cls(float(accuracy), float(nn.functional.cross_entropy(logits, truth)))


def labels_of(graph: Graph, split: Split | None, device: torch.device) -> tuple[Split, Tensor, Tensor]:
    """What a supervised method needs: the split, and the labels of its training and validation nodes."""
    if graph.labels is None or split is None:
        raise LabelError("a supervised method needs labels and a split; give --labels, or choose another method")
    targets, truth = (torch.from_numpy(graph.labels[part]).to(device) for part in (split.train, split.val))
    return split, targets, truth


class Outcome(NamedTuple):
    """How a training went: every epoch, the one whose weights the module has now, and how it was chosen."""

    history: list[Epoch]
    epoch: int
    select: str


def train_loop(
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    *,
    epochs: int,
    clock: Clock,
    patience: int = 0,
    select: str = "last",
    validate: Callable[[], Validated] | None = None,
    after_step: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Outcome:
    """Minimise ``loss(epoch)`` (a scalar), one step an epoch, and leave ``module`` with the weights of one epoch.

    ``select`` says which: ``last``, ``loss`` (the step from the lowest training loss; the codes of DGI and GGD keep the
    weights before that step) or ``validation`` (highest validation accuracy, of equals the lowest validation loss).
    With ``patience`` > 0 training ends after as many epochs without improvement of the training loss or, with
    ``validate``, of neither validation accuracy nor validation loss. ``after_step`` is for what happens between steps,
    such as a moving average or a learning-rate schedule.
    """
    history: list[Epoch] = []
    kept, kept_epoch, kept_score = _copy(module), 0, (-math.inf, -math.inf)
    best, since = [-math.inf, -math.inf], 0
    reuse_freed_memory()
    for epoch in range(1, epochs + 1):
        module.train()
        optimiser.zero_grad(set_to_none=True)
        value = loss(epoch)
        if not value.isfinite():
            raise TrainingError(f"training diverged: the loss of epoch {epoch} is {value.item()}; lower lr")
        value.backward()
        optimiser.step()
        if after_step is not None:
            after_step(epoch)
        found = None if validate is None else validate()
        history.append(Epoch(epoch, float(value.detach()), clock.lap("train"), found and found.accuracy))
        if on_epoch is not None:
            on_epoch(history[-1])
        score = (-history[-1].loss, 0.0) if found is None else (found.accuracy, -found.loss)
        since = 0 if any(new > old for new, old in zip(score, best, strict=True)) else since + 1
        best = [max(new, old) for new, old in zip(score, best, strict=True)]
        if select != "last" and score > kept_score:
            kept, kept_epoch, kept_score = _copy(module), epoch, score
        if patience and since >= patience:
            break
    if select != "last":
        module.load_state_dict(kept)
    return Outcome(history, len(history) if select == "last" else kept_epoch, select)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@torch.no_grad()
def embed(module: nn.Module, forward: Callable[[], Tensor]) -> NDArray[np.float32]:
    """``forward()`` in evaluation mode as a float32 array."""
    module.eval()
    values: NDArray[np.float32] = forward().cpu().numpy()
    return values


def fit_encoder(
    module: nn.Module,
    forward: Callable[[], Tensor],
    optimiser: torch.optim.Optimizer,
    loss: Callable[[int], Tensor],
    settings: Settings,
    *,
    epochs: int,
    clock: Clock,
    patience: int = 0,
    select: str = "last",
    after_step: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    notes: tuple[str, ...] = (),
) -> Fitted:
    """Train without labels by ``loss(epoch)``; ``forward()`` then gives the embedding (N x D)."""
    outcome = train_loop(
        module, optimiser, loss, epochs=epochs, clock=clock, patience=patience, select=select, after_step=after_step,
        on_epoch=on_epoch,
    )  # fmt: skip
    embedding = embed(module, forward)
    clock.lap("embed")
    return Fitted(
        settings, embedding=embedding, history=outcome.history, epoch=outcome.epoch, select=outcome.select,
        seconds=clock.seconds, notes=notes,
    )  # fmt: skip


def fit_classifier(
    module: nn.Module,
    forward: Callable[[int | None], Tensor],
    optimiser: torch.optim.Optimizer,
    graph: Graph,
    settings: Settings,
    *,
    split: Split | None,
    epochs: int,
    clock: Clock,
    patience: int = 0,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Fitted:
    """Train a supervised model on the training nodes and keep the epoch that is best on the validation nodes.

    ``forward(epoch)`` gives logits (N x C) of the training pass of that epoch, ``forward(None)`` those without
    dropout, for predictions. ``loss`` takes logits and labels of the training nodes.
    """
    device = next(module.parameters()).device
    split, targets, truth = labels_of(graph, split, device)
    train, val = (torch.from_numpy(part).to(device) for part in (split.train, split.val))

    @torch.no_grad()
    def validate() -> Validated:
        module.eval()
        return Validated.of(forward(None)[val], truth)

    outcome = train_loop(
        module, optimiser, lambda epoch: loss(forward(epoch)[train], targets), epochs=epochs, clock=clock,
        patience=patience, select="validation", validate=validate, on_epoch=on_epoch,
    )  # fmt: skip
    predictions = embed(module, lambda: forward(None)).argmax(1)
    clock.lap("embed")
    return Fitted(
        settings, predictions=predictions, history=outcome.history, epoch=outcome.epoch, select=outcome.select,
        seconds=clock.seconds,
    )  # fmt: skip
