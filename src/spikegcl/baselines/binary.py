"""Networks of -1 and +1: the sign with its straight-through gradient, scales, and products of packed signs.

The sign of 0 is +1 everywhere, because a bit has two values. The codes of Bi-GCN, BinaryGNN and BANE give 0 there, a
third value that fits no bit. It matters in three places, and each is handled where it occurs: a feature column that is
constant has the sign +1 for every node instead of being silent (it acts as a bias); a row of zeros has the scale 0 and
stays silent; and dropout follows the sign instead of preceding it, so that a dropped entry is absent, not +1.

A product of signs is a whole number, exact in float32 below 2^24 columns. Scales are multiplied on afterwards, so
floats, masked sums and XNOR with popcount give the same numbers to the last bit.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from spikegcl import bits
from spikegcl.baselines.inputs import dropout
from spikegcl.propagate import fused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray


def signs(x: Tensor) -> Tensor:
    """-1 where x < 0, else +1."""
    return torch.where(x < 0, -1.0, 1.0)


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return signs(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0].masked_fill(x.abs() > 1, 0)


def sign(x: Tensor) -> Tensor:
    """:func:`signs` with the straight-through gradient: it passes unchanged where |x| <= 1 and is 0 elsewhere."""
    out: Tensor = _Sign.apply(x)  # type: ignore[no-untyped-call]
    return out


def mean_abs(x: Tensor, dim: int) -> Tensor:
    """Mean absolute value along ``dim``, which is kept: the scale that brings sign(x) closest to x."""
    return x.abs().mean(dim, keepdim=True)


# ------------------------------------------------------------------------------------------------------ packed signs


@dataclass(frozen=True, eq=False)
class Signs:
    """A constant matrix of -1 and +1, N x ``width``, as bits; entries that were dropped count as 0.

    ``ones`` (uint8, N x ceil(width / 8), packed as in bits.py) has the bits of the entries +1, ``kept`` those of the
    entries that were not dropped (None: all); ``ones`` lies within ``kept``.
    """

    ones: Tensor
    width: int
    kept: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """The signs of x, N x width."""
        return cls(torch.from_numpy(bits.pack_signs(x.cpu().numpy())).to(x.device), x.shape[1])

    def dense(self) -> Tensor:
        """The matrix as float32."""
        plus = _unpack(self.ones, self.width)
        return 2 * plus - (1 if self.kept is None else _unpack(self.kept, self.width))

    def dropout(self, rate: float, key: int) -> Signs:
        """Entries set to zero with probability ``rate``; the others stay as they are."""
        if rate == 0:
            return self
        kept = torch.from_numpy(_random_bits(tuple(self.ones.shape), self.width, 1 - rate, key)).to(self.ones.device)
        return replace(self, ones=self.ones & kept, kept=kept)

    def __matmul__(self, right: Tensor) -> Tensor:
        """The product with a tensor (width x C), differentiable in it; exact if that holds -1 and +1."""
        out: Tensor = _Product.apply(right, self)  # type: ignore[no-untyped-call]
        return out


def _unpack(packed: Tensor, width: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed[:, :, None].bitwise_right_shift(places) & 1).flatten(1)[:, :width].float()


def _random_bits(shape: tuple[int, ...], width: int, rate: float, key: int) -> NDArray[np.uint8]:
    """Packed bits, each 1 with probability ``rate`` (to 1 / 65536), zero beyond ``width``.

    With r a fair bit, r | b is 1 with probability (1 + P(b)) / 2 and r & b with P(b) / 2: the binary digits of the
    rate, from the last one up, say which of the two comes next.
    """
    drawn = np.zeros(shape, np.uint8)
    digits = round(rate * 2**16)
    for place, fair in zip(range((digits & -digits).bit_length() - 1, 16), _fair_bits(shape, key)):
        combine = np.bitwise_or if digits >> place & 1 else np.bitwise_and
        combine(fair, drawn, out=drawn)
    if width % 8:
        drawn[:, -1] &= (1 << width % 8) - 1
    return drawn


def _fair_bits(shape: tuple[int, ...], key: int) -> Iterator[NDArray[np.uint8]]:
    """Arrays of random bytes, without end. Drawn 64 bits at a time, quicker than byte by byte."""
    rng, count = np.random.Generator(np.random.SFC64(key)), math.prod(shape)
    words = -(-count // 4)
    while True:
        two = rng.integers(0, 2**64, words, dtype=np.uint64).view(np.uint8).reshape(2, -1)
        yield from two[:, :count].reshape(2, *shape)


class _Product(torch.autograd.Function):
    """S T = 2 [S = +1] T - [S != 0] T by masked sums of packed bits; the gradient in T is S^T G."""

    @staticmethod
    def forward(ctx: Any, right: Tensor, left: Signs) -> Tensor:
        ctx.left = left
        if not fused(right):
            return left.dense() @ right
        weight = right.detach().contiguous().numpy()
        whole = weight.sum(0) if left.kept is None else bits.linear(left.kept.numpy(), weight)
        return torch.from_numpy(2 * bits.linear(left.ones.numpy(), weight) - whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        left, grad = ctx.left, grads[0].contiguous()
        if not fused(grad):
            return left.dense().T @ grad, None
        values = grad.numpy()
        whole = values.sum(0) if left.kept is None else bits.linear_transpose(left.kept.numpy(), values, left.width)
        plus = bits.linear_transpose(left.ones.numpy(), values, left.width)
        return torch.from_numpy(2 * plus - whole), None


# ------------------------------------------------------------------------------------------------------------ layers


@dataclass(frozen=True, eq=False)
class Binarised:
    """scale * signs, the 1-bit form of a constant matrix; ``scale`` (N x 1) is its mean absolute value by row."""

    signs: Signs
    scale: Tensor


class _ScaledProduct(torch.autograd.Function):
    """r (S T) m for signs S (N x d), T (d x C), scales r (N x 1), m (1 x C); the gradient at S leaves out r and m."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor:
        product = left @ right
        ctx.save_for_backward(left, right, row_scale, column_scale, product)
        return row_scale * product * column_scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, Tensor]:
        left, right, row_scale, column_scale, product = ctx.saved_tensors
        scaled = row_scale * grads[0]
        by_scale = (scaled * product).sum(0, keepdim=True)
        return grads[0] @ right.T, left.T @ (scaled * column_scale), None, by_scale


class BinaryLinear(nn.Module):
    """x^ W^ + b with x^ = scale(x) sign(x) by row and W^ = scale(W) sign(W) by output unit: N x d_in -> N x d_out.

    x is a tensor or :class:`Binarised`. With G and F the gradients at W^ and at the output, m the scale of W, the
    gradients are those of Bi-GCN's code:

        for W    m G 1[|W| <= 1] + sign(W) (sum over inputs of sign(W) G) / d_in      (XNOR-Net)
        for x    F sign(W)^T 1[|x| <= 1]

    The second is not that of the formula, which has both scales in it. They would make it so small that weight decay
    outweighs what reaches the layer before: Cora loses ten points.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))

    def initialise(self, rng: torch.Generator) -> None:
        """Weights from N(0, 1 / d_in), bias zero."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(len(self.weight)), generator=rng)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | Binarised, rate: float = 0.0, key: int = 0) -> Tensor:
        """The layer with dropout ``rate`` on x^."""
        weight, scale = sign(self.weight), mean_abs(self.weight, 0)
        if isinstance(x, Binarised):
            return x.scale / (1 - rate) * (x.signs.dropout(rate, key) @ weight) * scale + self.bias
        left = dropout(sign(x), rate, key)
        out: Tensor = _ScaledProduct.apply(left, weight, mean_abs(x.detach(), 1), scale)  # type: ignore[no-untyped-call]
        return out + self.bias


class PackedLinear(nn.Module):
    """A trained :class:`BinaryLinear` as bits: d_in / 8 bytes an output unit, multiplied by XNOR and popcount.

    Same numbers as the layer it was made from, to the last bit.
    """

    ones: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: BinaryLinear) -> None:
        super().__init__()
        self.width = len(layer.weight)
        self.register_buffer("ones", Signs.of(layer.weight.detach().T).ones)
        self.register_buffer("scale", mean_abs(layer.weight.detach(), 0))
        self.register_buffer("bias", layer.bias.detach().clone())

    def forward(self, x: Tensor | Binarised, rate: float = 0.0, key: int = 0) -> Tensor:
        """The layer without dropout, which belongs to training: ``rate`` is 0."""
        assert rate == 0
        if not isinstance(x, Binarised):
            x = Binarised(Signs.of(x), mean_abs(x, 1))
        if not fused(x.scale):
            weight = Signs(self.ones, self.width).dense().T
            return x.scale * (x.signs.dense() @ weight) * self.scale + self.bias
        arrays = (part.flatten().numpy() for part in (x.scale, self.scale, self.bias))
        return torch.from_numpy(bits.xnor_linear(x.signs.ones.numpy(), self.ones.numpy(), self.width, *arrays))


def packed(module: nn.Module) -> nn.Module:
    """A copy of ``module``, for inference, in which every :class:`BinaryLinear` is a :class:`PackedLinear`."""
    twin = copy.deepcopy(module).eval()
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if isinstance(child, BinaryLinear):
                setattr(parent, name, PackedLinear(child))
    return twin
