"""Attention over the edges of a graph with several heads, in one pass over the rows each way.

With scores s (N x K, of a node as receiver) and t (N x K, as sender), features x (N x K*F) and j over N(i) and i:

    a_ijk = softmax_j LeakyReLU(s_ik + t_jk)        out_ik = sum_j m_ijk a_ijk x_jk

where m drops an edge of a head with probability ``drop`` and divides the others by 1 - drop. Like the products of
:mod:`spikegcl.propagate` it has two forms: numba kernels on the CPU, plain torch elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from spikegcl.baselines.inputs import keep
from spikegcl.propagate import fused

if TYPE_CHECKING:
    from spikegcl.propagate import Operator

SLOPE = 0.2  # of the LeakyReLU, the authors'
_SLOPE, _F0, _F1 = np.float32(SLOPE), np.float32(0), np.float32(1)


def attend(operator: Operator, x: Tensor, receiver: Tensor, sender: Tensor, drop: float = 0.0, key: int = 0) -> Tensor:
    """x is N x K*F, the scores N x K; the result N x K*F. The pattern is that of an operator of kind ``sum``, A + I."""
    kept = keep((len(operator.indices), receiver.shape[1]), drop, key, x.device) if drop else None
    if fused(x):
        out: Tensor = _Attend.apply(x, receiver, sender, operator, kept, 1 / (1 - drop))  # type: ignore[no-untyped-call]
        return out
    rows, columns = operator.rows, operator.indices.long()
    score = torch.nn.functional.leaky_relu(receiver[rows] + sender[columns], SLOPE)
    top = torch.segment_reduce(score.detach(), "max", offsets=operator.indptr)
    weight = (score - top[rows]).exp()
    weight = weight / torch.zeros_like(top).index_add(0, rows, weight)[rows]
    weight = weight if kept is None else weight * kept / (1 - drop)
    heads = x.view(len(x), receiver.shape[1], -1)
    return torch.zeros_like(heads).index_add(0, rows, weight[..., None] * heads[columns]).view_as(x)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, receiver: Tensor, sender: Tensor, operator: Operator, kept: Tensor | None, scale: float
    ) -> Tensor:
        x, receiver, sender = x.contiguous(), receiver.contiguous(), sender.contiguous()
        share = torch.empty(len(operator.indices), receiver.shape[1])
        out = torch.empty_like(x)
        ctx.operator, ctx.scale = operator, np.float32(scale)
        ctx.kept = torch.ones(0, receiver.shape[1], dtype=torch.bool) if kept is None else kept
        ctx.save_for_backward(x, receiver, sender, share)
        _forward(*_pattern(operator), *_arrays(receiver, sender, x, ctx.kept), ctx.scale, *_arrays(share, out))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, receiver, sender, share = ctx.saved_tensors
        grad, operator = grads[0].contiguous(), ctx.operator
        by_score = torch.empty_like(share)
        by_x, by_receiver, by_sender = torch.empty_like(x), torch.empty_like(receiver), torch.empty_like(sender)
        pattern, dropped = _pattern(operator), (ctx.kept.numpy(), ctx.scale)
        _backward_rows(
            *pattern, *_arrays(receiver, sender, x), *dropped, *_arrays(share, grad, by_score, by_receiver)
        )  # fmt: skip
        _backward_columns(*pattern, operator.mirror.numpy(), *dropped, *_arrays(share, grad, by_score, by_sender, by_x))
        return by_x, by_receiver, by_sender, None, None, None


def _pattern(operator: Operator) -> tuple[Any, ...]:
    return operator.indptr.numpy(), operator.indices.numpy()


def _arrays(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.detach().numpy() for tensor in tensors)


# In the kernels ``kept`` is E x K, or 0 x K where nothing is dropped; ``share`` (E x K) is a before dropping.


@njit(parallel=True, nogil=True, cache=True)
def _forward(indptr, indices, receiver, sender, x, kept, scale, share, out):  # type: ignore[no-untyped-def]
    heads = receiver.shape[1]
    width = x.shape[1] // heads
    dropping = len(kept) > 0
    for i in prange(len(indptr) - 1):
        out[i] = _F0
        for k in range(heads):
            top = -np.float32(np.inf)
            for e in range(indptr[i], indptr[i + 1]):
                score = receiver[i, k] + sender[indices[e], k]
                score = score if score > _F0 else _SLOPE * score
                share[e, k] = score
                top = max(top, score)
            total = _F0
            for e in range(indptr[i], indptr[i + 1]):
                share[e, k] = np.exp(share[e, k] - top)
                total += share[e, k]
            for e in range(indptr[i], indptr[i + 1]):
                share[e, k] /= total
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            for k in range(heads):
                if dropping and not kept[e, k]:
                    continue
                factor = share[e, k] * scale
                for c in range(k * width, (k + 1) * width):
                    out[i, c] += factor * x[j, c]


@njit(parallel=True, nogil=True, cache=True)
def _backward_rows(  # type: ignore[no-untyped-def]
    indptr, indices, receiver, sender, x, kept, scale, share, grad, by_score, by_receiver
):
    """The gradient of every score (E x K) and its sum over a row, which is that of the receiver."""
    heads = receiver.shape[1]
    width = x.shape[1] // heads
    dropping = len(kept) > 0
    for i in prange(len(indptr) - 1):
        for k in range(heads):
            mean = _F0
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                slope = _F0
                if not dropping or kept[e, k]:
                    for c in range(k * width, (k + 1) * width):
                        slope += grad[i, c] * x[j, c]
                    slope *= scale
                by_score[e, k] = slope
                mean += share[e, k] * slope
            total = _F0
            for e in range(indptr[i], indptr[i + 1]):
                steep = _F1 if receiver[i, k] + sender[indices[e], k] > _F0 else _SLOPE
                by_score[e, k] = share[e, k] * (by_score[e, k] - mean) * steep
                total += by_score[e, k]
            by_receiver[i, k] = total


@njit(parallel=True, nogil=True, cache=True)
def _backward_columns(  # type: ignore[no-untyped-def]
    indptr, indices, mirror, kept, scale, share, grad, by_score, by_sender, by_x
):
    """Sums over the edges that leave a node: the gradients of the sender's score and of its features."""
    heads = share.shape[1]
    width = by_x.shape[1] // heads
    dropping = len(kept) > 0
    for j in prange(len(indptr) - 1):
        by_x[j] = _F0
        by_sender[j] = _F0
        for e in range(indptr[j], indptr[j + 1]):
            i, back = indices[e], mirror[e]
            for k in range(heads):
                by_sender[j, k] += by_score[back, k]
                if dropping and not kept[back, k]:
                    continue
                factor = share[back, k] * scale
                for c in range(k * width, (k + 1) * width):
                    by_x[j, c] += factor * grad[i, c]
