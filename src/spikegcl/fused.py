"""What happens between two products, in one pass over memory each: activation with dropout, and the spiking neuron.

On the CPU these are single kernels with their own backward; elsewhere the same formulas in plain torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikegcl import fused_kernels as kernels
from spikegcl import neurons, noise
from spikegcl.kernels import BLOCKS
from spikegcl.propagate import fused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spikegcl.neurons import Neuron


class Affine(NamedTuple):
    """A product still to be shifted: x + reach (outer) shift + bias.

    x is N x K*H (K steps side by side), ``reach`` N, ``shift`` and ``bias`` K*H. A constant added before a
    propagation arrives multiplied by ``reach``, so batch norm and bias never cost a pass of their own.
    """

    x: Tensor
    reach: Tensor
    shift: Tensor
    bias: Tensor

    def dense(self) -> Tensor:
        return self.x + self.reach[:, None] * self.shift + self.bias


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, reach: Tensor, shift: Tensor, bias: Tensor, kind: str, keys: Sequence[int], drop: float,
        names: NDArray[np.int64], own: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        ctx.own = own
        ctx.call = (
            kernels.ACTIVATIONS[kind],
            names,
            np.array(keys, np.uint32),
            noise.cutoff(drop),
            np.float32(1 / (1 - drop)),
            own,
        )
        total = torch.zeros(BLOCKS, x.shape[1], dtype=torch.float64)
        square = torch.zeros_like(total)
        kernels.activate(
            x.detach().numpy(), reach.numpy(), shift.detach().numpy(), bias.detach().numpy(), *ctx.call,
            total.numpy(), square.numpy(),
        )  # fmt: skip
        mean = total.sum(0) / own
        var = (square.sum(0) / own - mean**2).clamp(min=0)
        mean, var = mean.float(), var.float()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, reach, mean)
        return x, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out, reach, mean = ctx.saved_tensors
        grad, by_mean, by_var = grads
        slope = by_var * (2 / ctx.own)
        offset = by_mean / ctx.own - slope * mean
        grad = grad.contiguous()
        bias_grad = torch.zeros(BLOCKS, out.shape[1])
        shift_grad = torch.zeros_like(bias_grad)
        kernels.activate_backward(
            out.detach().numpy(), grad.numpy(), reach.numpy(), offset.numpy(), slope.numpy(), *ctx.call,
            bias_grad.numpy(), shift_grad.numpy(),
        )  # fmt: skip
        return grad, None, shift_grad.sum(0), bias_grad.sum(0), None, None, None, None, None


def activate(
    product: Affine,
    kind: str,
    keys: Sequence[int],
    drop: float,
    channels: int,
    names: NDArray[np.int64] | None = None,
    own: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Shift, activate and drop. Returns h (N x K*H; on the CPU in the memory of ``product.x``), mean and variance.

    ``kind`` is none, relu or elu; ``keys`` holds one dropout key a step, and ``names`` (N) the numbers by which rows
    take part in it (default: their positions). Mean and biased variance (K*H) are those of the result over the first
    ``own`` nodes (default: all), differentiable, ready for batch norm.
    """
    names = np.arange(len(product.x)) if names is None else names
    own = len(product.x) if own is None else own
    if fused(product.x):
        h, mean, var = _Activate.apply(*product, kind, keys, drop, names, own)  # type: ignore[no-untyped-call]
        return h, mean, var
    h = product.dense()
    if kind != "none":
        h = torch.nn.functional.elu(h) if kind == "elu" else torch.relu(h)
    if drop > 0:
        nodes = torch.from_numpy(names).to(h.device)[:, None]
        places = torch.arange(channels, device=h.device)[None]
        kept = torch.cat([noise.keep(key, nodes, places, drop) for key in keys], dim=1)
        h = h * kept / (1 - drop)
    var, mean = torch.var_mean(h[:own], dim=0, correction=0)
    return h, mean, var


class _ScoreSpikes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, current: Tensor, reach: Tensor, shift: Tensor, bias: Tensor, tau: Tensor, head: Tensor,
        membrane: Tensor, neuron: Neuron, block: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        scores = torch.empty(len(current), current.shape[1] // len(head))
        charged, after = current.detach(), torch.empty_like(membrane)
        ctx.neuron, ctx.block = neuron, block
        ctx.set_materialize_grads(False)  # the membrane has none: no zeros for it
        ctx.call = _constants(neuron, tau)
        kernels.score_spikes(
            charged.numpy(), reach.numpy(), shift.detach().numpy(), bias.detach().numpy(), membrane.numpy(), *ctx.call,
            head.detach().numpy(), after.numpy(), scores.numpy(),
        )  # fmt: skip
        ctx.mark_non_differentiable(after)
        ctx.save_for_backward(charged, membrane, reach, head)
        return scores, after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        charged, start, reach, head = ctx.saved_tensors
        width, channels = charged.shape[1], len(head)
        head_grad = torch.zeros(BLOCKS, channels)
        bias_grad = torch.zeros(BLOCKS, width)
        shift_grad = torch.zeros(BLOCKS, width)
        tau_grad = torch.zeros(BLOCKS)
        kernels.score_spikes_backward(
            charged.numpy(), start.numpy(), grads[0].contiguous().numpy(), ctx.block, *ctx.call,
            head.detach().numpy(), kernels.SURROGATES[ctx.neuron.surrogate], np.float32(ctx.neuron.alpha),
            reach.numpy(), head_grad.numpy(), bias_grad.numpy(), shift_grad.numpy(), tau_grad.numpy(),
        )  # fmt: skip
        by_tau = None if ctx.neuron.kind == "IF" else tau_grad.sum() * float(ctx.call[1])
        return charged, None, shift_grad.sum(0), bias_grad.sum(0), by_tau, head_grad.sum(0), None, None, None


def _constants(neuron: Neuron, tau: Tensor) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """Decay, gain, threshold and kind of reset, as the kernels want them."""
    gain = 1.0 if neuron.kind == "IF" else 1 / float(tau.detach())
    decay = 1.0 if neuron.kind == "IF" else 1 - gain
    return np.float32(decay), np.float32(gain), np.float32(neuron.threshold), np.float32(neuron.reset == "subtract")


def score_spikes(
    current: Affine, membrane: Tensor, neuron: Neuron, tau: Tensor, head: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    """Run the neuron over the K steps in ``current`` and score every step's spikes by ``head`` (H).

    Returns scores N x K and the membrane N x H after the last step, detached. Gradients run back in time through
    ``block`` steps and stop at block boundaries. On the CPU the memory of ``current.x`` is reused.
    """
    if fused(current.x):
        scores, after = _ScoreSpikes.apply(*current, tau, head, membrane, neuron, block)  # type: ignore[no-untyped-call]
        return scores, after
    scores_list = []
    for k, step_current in enumerate(current.dense().split(len(head), dim=1)):
        if k % block == 0:
            membrane = membrane.detach()
        spikes, membrane = neurons.step(neuron, step_current, membrane, tau)
        scores_list.append(spikes @ head)
    return torch.stack(scores_list, dim=1), membrane.detach()


class _RunNeurons(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, currents: Tensor, steps: int, neuron: Neuron, constants: tuple[np.float32, ...]) -> Tensor:
        spikes = torch.empty(steps, *currents.shape[1:])
        flat = currents.detach().contiguous().view(len(currents), -1)
        kernels.run_neurons(flat.numpy(), *constants, spikes.view(steps, -1).numpy())
        ctx.neuron, ctx.constants, ctx.shape = neuron, constants, currents.shape
        ctx.save_for_backward(flat)
        return spikes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (flat,) = ctx.saved_tensors
        grad = grads[0].contiguous().view(len(grads[0]), -1)
        by_current = torch.zeros_like(flat)
        kernels.run_neurons_backward(
            flat.numpy(), grad.numpy(), *ctx.constants, kernels.SURROGATES[ctx.neuron.surrogate],
            np.float32(ctx.neuron.alpha), by_current.numpy(),
        )  # fmt: skip
        return by_current.view(ctx.shape), None, None, None


def run_neurons(
    neuron: Neuron, currents: Tensor, steps: int, tau: float = 1.0, fade: float = 1.0, rise: float = 0.0
) -> Tensor:
    """Spikes (T x ...) of :func:`spikegcl.neurons.run` for ``currents`` T x ..., or 1 x ... if they do not change."""
    if fused(currents):
        constants = *_constants(neuron, torch.tensor(tau)), np.float32(fade), np.float32(rise)
        spikes: Tensor = _RunNeurons.apply(currents, steps, neuron, constants)  # type: ignore[no-untyped-call]
        return spikes
    return neurons.run(neuron, currents.expand(steps, *currents.shape[1:]), tau, fade, rise)[0]


@torch.no_grad()
def pack_spikes(
    current: Affine, membrane: Tensor, neuron: Neuron, tau: Tensor, first_bit: int, packed: Tensor
) -> Tensor:
    """Run the neuron over the steps in ``current`` and write the spikes into ``packed`` (uint8, N x bytes).

    Bit ``first_bit + k*H + h`` of a row is channel h of step k, little-endian within bytes. Returns the membrane.
    """
    if fused(current.x):
        membrane = membrane.clone()
        kernels.pack_spikes(
            current.x.numpy(), current.reach.numpy(), current.shift.numpy(), current.bias.numpy(), membrane.numpy(),
            *_constants(neuron, tau), first_bit, packed.numpy(),
        )  # fmt: skip
        return membrane
    for step_current in current.dense().split(membrane.shape[1], dim=1):
        spikes, membrane = neurons.step(neuron, step_current, membrane, tau)
        bits = torch.arange(first_bit, first_bit + spikes.shape[1], device=packed.device)
        packed.index_add_(1, bits // 8, spikes.to(torch.uint8) << (bits % 8).to(torch.uint8))
        first_bit += spikes.shape[1]
    return membrane
