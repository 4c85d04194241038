"""The feature matrix as the left factor of a product: X W, with sparse features kept sparse whatever is done to them.

Every random change a method makes to its input is applied where it costs least:

    masked columns    X diag(m) W = X (m * W)         a product with fewer rows of W
    dropout           on the stored entries of X      zeros stay zeros
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spikegcl import noise
from spikegcl.errors import FeatureError
from spikegcl.graph import features_of
from spikegcl.propagate import multiply, multiply_at

if TYPE_CHECKING:
    from spikegcl.graph import Graph


@dataclass(frozen=True, eq=False)
class _Sparse:
    """X by rows (CSR) and the pattern of its transpose; ``by_column[k]`` is the entry that stands k-th by column."""

    shape: tuple[int, int]
    indptr: Tensor
    indices: Tensor
    indptr_t: Tensor
    indices_t: Tensor
    by_column: Tensor

    @cached_property
    def rows(self) -> Tensor:
        """Row of every entry (int64)."""
        return torch.repeat_interleave(torch.arange(self.shape[0], device=self.indptr.device), self.indptr.diff())


class _Product(torch.autograd.Function):
    """X W for a sparse X given by its pattern and values. The gradients: X^T G by W, and G W^T at the pattern."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pattern: _Sparse, values: Tensor) -> Tensor:
        weight = weight.contiguous()
        ctx.pattern = pattern
        ctx.save_for_backward(values, weight if ctx.needs_input_grad[2] else None)
        return multiply(pattern.indptr, pattern.indices, values, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None]:
        pattern, grad = ctx.pattern, grads[0].contiguous()
        values, weight = ctx.saved_tensors
        ordered = values.detach()[pattern.by_column]
        by_weight = multiply(pattern.indptr_t, pattern.indices_t, ordered, grad)
        if weight is None:
            return by_weight, None, None
        return by_weight, None, multiply_at(pattern.indptr, pattern.indices, grad, weight.detach())


@dataclass(frozen=True, eq=False)
class Inputs:
    """Features X (N x d) of one view; ``inputs @ weight`` is X W (N x H), differentiable in W.

    ``values`` is X itself when dense, else its stored entries by row; these may have a gradient of their own. Views
    cost nothing until multiplied.
    """

    values: Tensor
    pattern: _Sparse | None
    columns: Tensor | None = None
    drop: float = 0.0
    key: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        if self.pattern is not None:
            return self.pattern.shape
        return self.values.shape[0], self.values.shape[1]

    @property
    def is_sparse(self) -> bool:
        return self.pattern is not None

    def mask_columns(self, rate: float, key: int) -> Inputs:
        """A share ``rate`` of the columns set to zero for all nodes; the others are not rescaled."""
        if rate == 0:
            return self
        kept = keep((self.shape[1], 1), rate, noise.derive(key, "columns"), self.values.device)
        return replace(self, columns=kept.float())

    def dropout(self, rate: float, key: int) -> Inputs:
        """Entries set to zero with probability ``rate``, the others divided by 1 - rate."""
        return replace(self, drop=rate, key=key)

    def dense(self) -> Tensor:
        """X of this view as a dense tensor, N x d; for dense features only."""
        if self.pattern is not None:
            raise FeatureError("sparse features are not made dense; multiply them instead")
        x = dropout(self.values, self.drop, self.key)
        return x if self.columns is None else x * self.columns.T

    def __matmul__(self, weight: Tensor) -> Tensor:
        weight = weight if self.columns is None else weight * self.columns
        if self.pattern is None:
            return dropout(self.values, self.drop, self.key) @ weight
        out: Tensor = _Product.apply(weight, self.pattern, dropout(self.values, self.drop, self.key))  # type: ignore[no-untyped-call]
        return out


def make_inputs(graph: Graph, *, row_normalise: bool = False, device: torch.device | str = "cpu") -> Inputs:
    """Features of ``graph`` ready for products; ``row_normalise`` divides each row by its sum of absolute values."""
    features = features_of(graph)
    return wrap(normalise_rows(features) if row_normalise else features, device)


def wrap(matrix: Any, device: torch.device | str = "cpu") -> Inputs:
    """A constant matrix, dense or sparse, ready for products."""
    if not sp.issparse(matrix):
        return Inputs(torch.from_numpy(np.ascontiguousarray(matrix)).to(device), None)
    rows = sp.csr_array(matrix)
    numbered = sp.csr_array((np.arange(rows.nnz), rows.indices, rows.indptr), rows.shape).tocsc()
    arrays = (
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32),
        numbered.indptr.astype(np.int64),
        numbered.indices.astype(np.int32),
        numbered.data.astype(np.int64),
    )
    pattern = _Sparse(tuple(rows.shape), *(torch.from_numpy(array).to(device) for array in arrays))
    return Inputs(torch.from_numpy(rows.data.astype(np.float32)).to(device), pattern)


def normalise_rows(features: Any) -> Any:
    """Rows divided by the sum of their absolute values (L1); empty rows stay empty. Dense or CSR, float32."""
    total = np.asarray(abs(features).sum(1), dtype=np.float32).ravel()
    inverse = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    if sp.issparse(features):
        return sp.csr_array(sp.diags_array(inverse) @ features)
    return features * inverse[:, None]


def dropout(x: Tensor, rate: float, key: int) -> Tensor:
    """Entries of x set to zero with probability ``rate`` and the others divided by 1 - rate; the key decides which."""
    if rate == 0:
        return x
    return x * keep(x.shape, rate, key, x.device).float().div_(1 - rate)


def keep(shape: tuple[int, ...], rate: float, key: int, device: torch.device | str = "cpu") -> Tensor:
    """A bool tensor that is False with probability ``rate`` (to 1 / 65536). Sixteen random bits an entry on the CPU,
    which is ten times quicker than torch's generator."""
    limit = round(rate * 2**16)
    if torch.device(device).type == "cpu":
        drawn = np.random.Generator(np.random.SFC64(key)).integers(0, 2**16, shape, dtype=np.uint16)
        return torch.from_numpy(drawn >= limit)
    generator = torch.Generator(device).manual_seed(key)
    return torch.randint(0, 2**16, shape, generator=generator, device=device) >= limit
