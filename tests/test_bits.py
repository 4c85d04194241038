"""Packed arithmetic obeys the arithmetic of the bits it packs."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.bits import (
    ROWS,
    check_packed,
    hamming,
    linear,
    linear_transpose,
    pack,
    pack_signs,
    popcount,
    unpack,
    xnor_linear,
)
from spikegcl.errors import CodesError

law = settings(deadline=None, max_examples=80)
rows = st.integers(0, 20)
widths = st.integers(1, 130)
columns = st.integers(1, 35)
seeds = st.integers(0, 2**32 - 1)


def draw(nodes: int, bits: int, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return (rng.random((nodes, bits)) < rng.random()).astype(np.uint8), rng


@law
@given(rows, widths, seeds)
def test_unpack_inverts_pack(nodes, bits, seed):
    x, _ = draw(nodes, bits, seed)
    assert pack(x).shape == (nodes, -(-bits // 8))
    assert np.array_equal(unpack(pack(x), bits), x)


@law
@given(st.integers(2, 20), widths, seeds)
def test_rows_never_bleed(nodes, bits, seed):
    x, rng = draw(nodes, bits, seed)
    packed = pack(x)
    for n in range(nodes):
        assert np.array_equal(packed[n], pack(x[n : n + 1])[0])
    row = int(rng.integers(nodes))
    x[row] ^= 1
    changed = (pack(x) != packed).any(1)
    assert changed.sum() == 1 and changed[row]


@law
@given(rows, rows, widths, seeds)
def test_hamming_counts_differing_bits(n, m, bits, seed):
    a, b = draw(n, bits, seed)[0], draw(m, bits, seed + 1)[0]
    distance = hamming(pack(a), pack(b))
    assert np.array_equal(distance, (a[:, None] != b[None]).sum(2))
    inner = a.astype(int) @ b.T.astype(int)
    assert np.array_equal(distance, popcount(pack(a))[:, None] + popcount(pack(b))[None] - 2 * inner)


@law
@given(st.integers(1, 12), widths, seeds)
def test_hamming_is_a_metric(nodes, bits, seed):
    packed = pack(draw(nodes, bits, seed)[0])
    distance = hamming(packed, packed)
    assert np.array_equal(distance, distance.T)
    assert np.array_equal(distance == 0, (packed[:, None] == packed[None]).all(2))
    assert (distance[:, None, :] <= distance[:, :, None] + distance[None, :, :]).all()


@law
@given(rows, widths, columns, seeds)
def test_xnor_linear_equals_the_product_of_signs(nodes, bits, units, seed):
    rng = np.random.default_rng(seed)
    x, weight = (rng.normal(size=(count, bits)).astype(np.float32) for count in (nodes, units))
    x[:, 0] = 0  # its sign is +1
    signs, others = (np.where(values < 0, -1, 1).astype(np.float32) for values in (x, weight))
    assert np.array_equal(unpack(pack_signs(x), bits), signs > 0)
    row, column, bias = (rng.normal(size=count).astype(np.float32) for count in (nodes, units, units))
    found = xnor_linear(pack_signs(x), pack_signs(weight), bits, row, column, bias)
    assert np.array_equal(found, row[:, None] * (signs @ others.T) * column + bias)


@law
@given(rows, widths, columns, seeds)
def test_linear_equals_the_product_of_unpacked_bits(nodes, bits, classes, seed):
    x, rng = draw(nodes, bits, seed)
    weight, bias = rng.normal(size=(bits, classes)).astype(np.float32), rng.normal(size=classes).astype(np.float32)
    expected = x.astype(np.float64) @ weight + bias
    assert np.allclose(linear(pack(x), weight, bias), expected, rtol=1e-5, atol=1e-5)
    # small integers are exact in float32, so that even ties must come out the same
    whole = np.round(4 * weight)
    exact = x.astype(np.float32) @ whole
    assert np.array_equal(linear(pack(x), whole), exact)
    assert np.array_equal(linear(pack(x), whole).argmax(1), exact.argmax(1))


@law
@given(rows, widths, columns, seeds)
def test_linear_transpose_is_the_adjoint(nodes, bits, classes, seed):
    x, rng = draw(nodes, bits, seed)
    grad = rng.normal(size=(nodes, classes)).astype(np.float32)
    assert np.allclose(linear_transpose(pack(x), grad, bits), x.T.astype(np.float64) @ grad, rtol=1e-5, atol=1e-5)
    whole = np.round(4 * grad)
    assert np.array_equal(linear_transpose(pack(x), whole, bits), x.T.astype(np.float32) @ whole)


@pytest.mark.parametrize("classes", [3, 15])
def test_results_do_not_depend_on_the_thread_count(classes):
    x, rng = draw(ROWS + 1000, 200, 0)
    packed = pack(x)
    weight, grad = rng.normal(size=(200, classes)), rng.normal(size=(len(x), classes))
    threads = numba.get_num_threads()
    results = []
    for count in {1, threads}:
        numba.set_num_threads(count)
        results.append((linear(packed, weight), linear_transpose(packed, grad, 200)))
    numba.set_num_threads(threads)
    for forward, backward in results:
        assert np.array_equal(forward, results[0][0])
        assert np.array_equal(backward, results[0][1])
    assert np.allclose(results[0][0], x @ weight, atol=1e-4)
    assert np.allclose(results[0][1], x.T @ grad, atol=1e-3)


def test_inputs_need_not_be_contiguous():
    x, rng = draw(30, 70, 0)
    weight = rng.normal(size=(3, 70)).astype(np.float32).T
    sliced = np.repeat(pack(x), 2, axis=0)[::2]
    assert np.allclose(linear(sliced, weight), x @ weight, atol=1e-5)
    assert np.array_equal(hamming(sliced, sliced), hamming(pack(x), pack(x)))


@pytest.mark.parametrize(
    ("packed", "bits", "message"),
    [
        (np.zeros((2, 2), np.uint8), 17, "17 bits take 3 bytes"),
        (np.zeros((2, 2), np.uint8), 8, "8 bits take 1 bytes"),
        (np.zeros((2, 2), np.int64), 16, "uint8 matrix"),
        (np.zeros(2, np.uint8), 16, "uint8 matrix"),
        (np.array([[0], [8]], np.uint8), 3, "row 1 has bits set past bit 3"),
    ],
)
def test_codes_that_cannot_be_are_refused(packed, bits, message):
    with pytest.raises(CodesError, match=message):
        check_packed(packed, bits)


def test_shapes_that_do_not_match_are_refused():
    packed = np.zeros((4, 2), np.uint8)
    with pytest.raises(CodesError, match="different width"):
        hamming(packed, packed[:, :1])
    with pytest.raises(CodesError, match="3 gradient rows for 4 codes"):
        linear_transpose(packed, np.zeros((3, 2), np.float32), 16)
    with pytest.raises(CodesError, match="one row per node"):
        pack([1, 0, 1])
