r"""Spiking neurons as pure functions: ``step(current, membrane) -> (spikes, membrane)``.

One step charges, fires and resets, exactly in the paper's order (equations 1 to 5):

    charge     IF         V = V' + I
               LIF, PLIF  V = V' + (I - (V' - V_reset)) / tau
    fire       S = 1 where V >= threshold, else 0
    reset      zero       V <- V_reset where S = 1
               subtract   V <- V - threshold where S = 1

The membrane is a value passed in and returned, so nothing is carried between calls, views or epochs. With tau = 1
(the paper's initial value) LIF is memoryless: V = I. PLIF is LIF whose tau is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from spikegcl.errors import ConfigError

Kind = Literal["IF", "LIF", "PLIF"]
Reset = Literal["zero", "subtract"]
KINDS = ("IF", "LIF", "PLIF")
RESETS = ("zero", "subtract")
SURROGATES = ("sigmoid", "triangle", "arctan", "multi-gaussian", "superspike", "rectangle")
V_RESET = 0.0
SELECTED = 2**25  # floats among which ranks are looked for at a time


@dataclass(frozen=True)
class Neuron:
    """The constants of a neuron. ``alpha`` is the sharpness of the surrogate gradient."""

    kind: Kind = "PLIF"
    threshold: float = 1.0
    reset: Reset = "subtract"
    surrogate: str = "sigmoid"
    alpha: float = 2.0

    def __post_init__(self) -> None:
        for value, known, what in (
            (self.kind, KINDS, "neuron"),
            (self.reset, RESETS, "reset"),
            (self.surrogate, SURROGATES, "surrogate"),
        ):
            if value not in known:
                raise ConfigError(f"unknown {what} {value!r}; choose one of {', '.join(known)}")
        if not self.alpha > 0:
            raise ConfigError(f"alpha must be positive, got {self.alpha}")


def surrogate_gradient(name: str, x: Tensor, alpha: float) -> Tensor:
    """The derivative that stands in for the step function's, at distance ``x`` = V - threshold.

    ================  ==========================================================================
    sigmoid           a s (1 - s) with s = 1 / (1 + exp(-a x))
    triangle          a max(0, 1 - |a x|)
    arctan            (a / 2) / (1 + (pi a x / 2)^2)
    superspike        1 / (1 + a |x|)^2
    multi-gaussian    1.15 N(x; 0, 1/a) - 0.15 N(x; 1/a, 6/a) - 0.15 N(x; -1/a, 6/a)
    rectangle         a where |a x| < 1/2, else 0
    ================  ==========================================================================
    """
    if name == "sigmoid":
        s = torch.sigmoid(alpha * x)
        return alpha * s * (1 - s)
    if name == "triangle":
        return alpha * (1 - (alpha * x).abs()).clamp(min=0)
    if name == "arctan":
        return alpha / 2 / (1 + (math.pi / 2 * alpha * x) ** 2)
    if name == "superspike":
        return 1 / (1 + alpha * x.abs()) ** 2
    if name == "rectangle":
        return alpha * ((alpha * x).abs() < 0.5).to(x.dtype)
    if name == "multi-gaussian":

        def normal(mean: float, sigma: float) -> Tensor:
            return torch.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

        width = 1 / alpha
        return 1.15 * normal(0, width) - 0.15 * normal(width, 6 * width) - 0.15 * normal(-width, 6 * width)
    raise ConfigError(f"unknown surrogate {name!r}; choose one of {', '.join(SURROGATES)}")


class _Fire(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, surrogate: str, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.surrogate, ctx.alpha = surrogate, alpha
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * surrogate_gradient(ctx.surrogate, x, ctx.alpha), None, None


def fire(x: Tensor, surrogate: str = "sigmoid", alpha: float = 2.0) -> Tensor:
    """1 where x >= 0, else 0; its gradient is the surrogate's."""
    out: Tensor = _Fire.apply(x, surrogate, alpha)  # type: ignore[no-untyped-call]
    return out


def charge(neuron: Neuron, current: Tensor, membrane: Tensor, tau: Tensor | float = 1.0) -> Tensor:
    """The membrane after a current has arrived, before it is compared with the threshold."""
    if neuron.kind == "IF":
        return membrane + current
    return membrane + (current - (membrane - V_RESET)) / tau


def step(
    neuron: Neuron,
    current: Tensor,
    membrane: Tensor,
    tau: Tensor | float = 1.0,
    threshold: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One time step. ``current`` and ``membrane`` have one shape (...); returns spikes (0/1) and the new membrane.

    ``threshold`` (same shape) takes the place of the neuron's where thresholds move from step to step.

    >>> neuron = Neuron("IF", threshold=1.0, reset="subtract")
    >>> step(neuron, torch.tensor([0.6, 1.7]), torch.zeros(2))
    (tensor([0., 1.]), tensor([0.6000, 0.7000]))
    """
    return release(neuron, charge(neuron, current, membrane, tau), threshold)


def release(neuron: Neuron, charged: Tensor, threshold: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What a charged membrane gives: spikes, and the membrane after their reset."""
    limit = neuron.threshold if threshold is None else threshold
    spikes = fire(charged - limit, neuron.surrogate, neuron.alpha)
    if neuron.reset == "zero":
        return spikes, spikes * V_RESET + (1 - spikes) * charged
    return spikes, charged - limit * spikes


def run(
    neuron: Neuron, currents: Tensor, tau: Tensor | float = 1.0, fade: float = 1.0, rise: float = 0.0
) -> tuple[Tensor, Tensor]:
    """A whole sequence from rest. ``currents`` T x ...; returns spikes T x ... and the final membrane.

    With ``fade`` or ``rise`` thresholds adapt: after a step each is multiplied by ``fade``, and raised by ``rise``
    where the neuron fired. :func:`spikegcl.fused.run_neurons` computes the same spikes faster.
    """
    membrane = torch.zeros_like(currents[0])
    threshold = torch.full_like(currents[0], neuron.threshold)
    spikes = []
    for current in currents:
        fired, membrane = step(neuron, current, membrane, tau, threshold)
        threshold = fade * threshold + rise * fired
        spikes.append(fired)
    return torch.stack(spikes), membrane


class SpikingNeuron(torch.nn.Module):
    """A thin module around :func:`step`: it owns tau (a parameter for PLIF), never the membrane."""

    tau: Tensor

    def __init__(self, neuron: Neuron, tau: float = 1.0) -> None:
        super().__init__()
        if neuron.kind != "IF" and not tau >= 1:
            raise ConfigError(f"tau must be at least 1 (1 = no memory), got {tau}")
        self.neuron = neuron
        if neuron.kind == "PLIF":
            self.tau = torch.nn.Parameter(torch.tensor(float(tau)))
        else:
            self.register_buffer("tau", torch.tensor(float(tau)))

    def forward(self, current: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
        return step(self.neuron, current, membrane, self.tau)

    @torch.no_grad()
    def project(self) -> None:
        """Keep a learned tau at 1 or above: below 1 the membrane would overshoot its input."""
        self.tau.clamp_(min=1.0)


def exceeded_by(values: Tensor, shares: Tensor) -> Tensor:
    """What ``shares`` (W) of the rows of each column of ``values`` (N x W) exceed: between two rows, on neither.

    Where more rows have the same value than fit, it lies in the gap beside them that comes closest to the share.

    >>> exceeded_by(torch.tensor([[0.0], [0.0], [0.0], [1.0], [2.0]]), torch.tensor([0.6]))
    tensor([0.5000])
    """
    count, found = len(values), values.new_empty(values.shape[1])
    for share in shares.unique().tolist():
        below = count - int(share * count)  # rows that do not exceed it
        ranks = max(1, below), min(below + 1, count)
        for chosen in (shares == share).nonzero()[:, 0].to(values.device).split(max(1, SELECTED // count)):
            columns = values.t()[chosen]  # selection is four times faster than sorting, along rows
            under, over = (columns.kthvalue(rank, 1).values for rank in ranks)
            found[chosen] = (under + over) / 2
            tied = (under == over).nonzero()[:, 0].tolist() if ranks[0] < ranks[1] else []
            for row in tied:
                found[chosen[row]] = _nearest_gap(columns[row], under[row], below)
    return found


def _nearest_gap(column: Tensor, shared: Tensor, below: int) -> Tensor:
    """The middle of the gap above or below a ``shared`` value that leaves about ``below`` rows under it."""
    under, over = column[column < shared], column[column > shared]
    gaps = [(len(under), under.max())] if len(under) else []
    gaps += [(len(column) - len(over), over.min())] if len(over) else []
    if not gaps:
        return shared
    return (shared + min(gaps, key=lambda gap: abs(gap[0] - below))[1]) / 2
