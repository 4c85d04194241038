"""Random bits as a pure function of (key, position): nothing depends on order, chunks or threads.

A *key* is a 32-bit integer derived from the seed and the place where the randomness is used. Whether a position is
kept is read off a hash of key and position, computed anew wherever it is needed (forward, backward, another process),
so no mask is ever stored.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def derive(*parts: int | str) -> int:
    """A 32-bit key for a place in the computation, e.g. ``derive(seed, "dropout", epoch, view, layer, step)``.

    >>> derive(0, "edges", 1) == derive(0, "edges", 1), derive(0, "edges", 1) == derive(0, "edges", 2)
    (True, False)
    """
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def generator(*parts: int | str) -> torch.Generator:
    """A seeded CPU generator for one-off draws (permutations, initial weights) at a place in the computation."""
    return torch.Generator().manual_seed(derive(*parts))


def cutoff(drop: float) -> int:
    """The 32-bit number below which a hash means "drop", for a drop probability in [0, 1)."""
    return min(_LOW, round(drop * 2**32))


def mix(x: Tensor) -> Tensor:
    """A bijective 32-bit hash (multiply and xor-shift) on int64 tensors holding 32-bit values."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def keep(key: int, rows: Tensor, columns: Tensor, drop: float) -> Tensor:
    """Boolean tensor: which positions (row, column) survive dropping with probability ``drop``.

    ``rows`` and ``columns`` are int64 and broadcast. The numba kernels compute the same function.
    """
    row_key = mix(mix(rows & _LOW) ^ key)
    return mix((row_key + columns * GOLDEN) & _LOW) >= cutoff(drop)
