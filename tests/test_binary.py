"""Signs: straight-through gradients against closed forms, packed products against floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spikegcl.baselines.binary import Binarised, BinaryLinear, PackedLinear, Signs, mean_abs, packed, sign
from spikegcl.propagate import plain_torch

law = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)
widths = st.integers(1, 70)


def draw(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def test_sign_of_zero_is_one_and_gradient_passes_up_to_one():
    x = torch.tensor([-1.5, -1.0, -0.2, -0.0, 0.0, 0.3, 1.0, 1.1], requires_grad=True)
    y = sign(x)
    assert y.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    y.backward(torch.arange(1.0, 9.0))
    assert x.grad is not None and x.grad.tolist() == [0, 2, 3, 4, 5, 6, 7, 0]


@law
@given(widths, seeds)
def test_mean_abs_is_the_best_scale_of_the_sign(width, seed):
    x = draw(3, width, seed=seed)
    error = [(x - scale * mean_abs(x, 1) * sign(x)).square().sum(1) for scale in (0.9, 1.0, 1.1)]
    assert (error[1] <= error[0]).all() and (error[1] <= error[2]).all()


@law
@given(st.integers(0, 9), widths, st.integers(1, 20), st.sampled_from([0.0, 0.4, 0.5]), seeds)
def test_packed_product_and_its_gradient_equal_the_dense_ones(rows, width, columns, rate, seed):
    left = Signs.of(draw(rows, width, seed=seed)).dropout(rate, seed)
    dense = left.dense()
    assert set(dense.unique().tolist()) <= ({-1, 1} if rate == 0 else {-1, 0, 1})
    right, grad = draw(width, columns, seed=seed + 1).requires_grad_(), draw(rows, columns, seed=seed + 2)
    product = left @ right
    torch.testing.assert_close(product, dense @ right, rtol=1e-4, atol=1e-4)
    assert torch.equal(left @ sign(right), dense @ sign(right))  # whole numbers: exact
    (found,) = torch.autograd.grad(product, right, grad)
    torch.testing.assert_close(found, dense.T @ grad, rtol=1e-4, atol=1e-4)


def test_dropout_keeps_the_share_it_is_asked_to():
    plus = Signs.of(torch.ones(1000, 203))
    for rate in (0.1, 0.4, 0.5, 0.9):
        kept = plus.dropout(rate, 3).dense()
        assert kept.mean().item() == pytest.approx(1 - rate, abs=5 * (rate * (1 - rate) / kept.numel()) ** 0.5)
        columns = kept.mean(0)  # no place in a byte is dropped more often than another
        assert (columns - (1 - rate)).abs().max() < 6 * (rate * (1 - rate) / 1000) ** 0.5
    assert torch.equal(plus.dropout(0.4, 3).dense(), plus.dropout(0.4, 3).dense())
    assert not torch.equal(plus.dropout(0.4, 3).dense(), plus.dropout(0.4, 4).dense())


def layer(width_in: int, width_out: int, seed: int) -> BinaryLinear:
    made = BinaryLinear(width_in, width_out)
    made.initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        made.weight.mul_(3)  # some weights beyond 1, where the gradient stops
        made.bias.normal_(generator=torch.Generator().manual_seed(seed))
    return made


@law
@given(st.integers(1, 9), widths, st.integers(1, 12), seeds)
def test_gradients_of_a_layer_are_the_closed_forms(rows, width, units, seed):
    made, x, grad = layer(width, units, seed), draw(rows, width, seed=seed), draw(rows, units, seed=seed + 1)
    x.requires_grad_()
    made(x).backward(grad)
    weight, given_x = made.weight.detach(), x.detach()
    signed, scale = np.where(weight < 0, -1, 1), weight.abs().mean(0).numpy()
    row_scale = given_x.abs().mean(1, keepdim=True).numpy()
    at_weight = (row_scale * np.where(given_x < 0, -1, 1)).T @ grad.numpy()
    expected = scale * at_weight * (weight.abs() <= 1).numpy() + signed * (signed * at_weight).sum(0) / width
    assert made.weight.grad is not None and x.grad is not None and made.bias.grad is not None
    np.testing.assert_allclose(made.weight.grad.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        x.grad.numpy(), (grad.numpy() @ signed.T) * (given_x.abs() <= 1).numpy(), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(made.bias.grad, grad.sum(0))


@law
@given(st.integers(1, 9), widths, st.integers(1, 12), seeds)
def test_constant_inputs_train_a_layer_like_the_tensor_they_came_from(rows, width, units, seed):
    made, x, grad = layer(width, units, seed), draw(rows, width, seed=seed), draw(rows, units, seed=seed + 1)
    constant = Binarised(Signs.of(x), mean_abs(x, 1))
    outputs = [made(x), made(constant)]
    assert torch.equal(*outputs)
    first, second = (torch.autograd.grad(out, made.weight, grad)[0] for out in outputs)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@law
@given(st.integers(1, 9), widths, st.integers(1, 12), seeds)
def test_packed_layer_gives_the_same_numbers(rows, width, units, seed):
    made, x = layer(width, units, seed), draw(rows, width, seed=seed)
    with torch.no_grad():
        expected = made(x)
        assert torch.equal(PackedLinear(made)(x), expected)
        with plain_torch():
            assert torch.equal(PackedLinear(made)(x), expected)


def test_packed_copies_a_model_and_leaves_it_alone():
    model = nn.Sequential(layer(64, 5, 0), nn.ModuleList([layer(5, 3, 1)]), nn.Linear(3, 2))
    twin = packed(model)
    kinds = [type(part).__name__ for part in twin.modules()]
    assert kinds == ["Sequential", "PackedLinear", "ModuleList", "PackedLinear", "Linear"]
    assert not twin.training and model.training and isinstance(model[0], BinaryLinear)
    assert 32 * twin[0].ones.numel() == 4 * model[0].weight.numel()
