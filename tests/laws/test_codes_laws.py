"""Laws of codes, for every width from 1 to 130 bits: packing loses nothing and rows never bleed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikegcl.bits import exact_head
from spikegcl.codes import Codes

every_width = pytest.mark.parametrize("bits", range(1, 131))
law = settings(deadline=None, max_examples=4)
seeds = st.integers(0, 2**32 - 1)
counts = st.integers(0, 9)


def draw(seed: int, nodes: int, bits: int, first_id: int = 0, channels: int | None = None) -> tuple[Codes, np.ndarray]:
    rng = np.random.default_rng(seed)
    matrix = (rng.random((nodes, bits)) < rng.random()).astype(np.uint8)
    ids = np.arange(first_id, first_id + nodes)
    return Codes.from_bits(matrix, ids if seed % 2 else [f"n{key}" for key in ids], channels), matrix


@every_width
@law
@given(seeds, counts)
def test_unpacking_inverts_packing(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits)
    assert codes.bits == bits
    assert codes.packed.shape == (nodes, -(-bits // 8))
    assert np.array_equal(codes.to_numpy(), matrix)
    assert np.array_equal(codes.to_torch().numpy(), matrix)


@every_width
@law
@given(seeds, st.integers(1, 9))
def test_changing_a_row_changes_no_other(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits)
    row = seed % nodes
    matrix[row] ^= 1
    changed = (Codes.from_bits(matrix).packed != codes.packed).any(1)
    assert changed.tolist() == [n == row for n in range(nodes)]


@every_width
@law
@given(seeds, counts, st.data())
def test_slicing_codes_slices_bits_and_ids(bits, seed, nodes, data):
    codes, matrix = draw(seed, nodes, bits)
    rows = data.draw(st.slices(nodes))
    assert np.array_equal(codes[rows].to_numpy(), matrix[rows])
    assert codes[rows].ids.tolist() == codes.ids[rows].tolist()


@every_width
@law
@given(seeds, counts)
def test_selecting_by_id_finds_the_rows(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits)
    order = np.random.default_rng(seed).permutation(nodes)[: nodes // 2 + 1]
    assert np.array_equal(codes.select(codes.ids[order]).to_numpy(), matrix[order])
    assert codes.select(codes.ids[order]).ids.tolist() == codes[order].ids.tolist()


@every_width
@law
@given(seeds, counts, counts)
def test_concatenation_is_undone_by_slicing(bits, seed, above, below):
    upper, _ = draw(seed, above, bits)
    lower, _ = draw(seed, below, bits, first_id=above)
    joined = Codes.concat([upper, lower])
    for part, back in ((upper, joined[:above]), (lower, joined[above:])):
        assert np.array_equal(back.packed, part.packed)
        assert back.ids.tolist() == part.ids.tolist()


@every_width
@law
@given(seeds, counts)
def test_truncating_keeps_the_first_bits_and_zero_padding(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits, channels=1)
    kept = 1 + seed % bits
    short = codes.truncate(kept)
    assert np.array_equal(short.to_numpy(), matrix[:, :kept])
    assert np.array_equal(short.packed, Codes.from_bits(matrix[:, :kept]).packed)
    assert np.array_equal(short.truncate(1).packed, codes.truncate(1).packed)


@every_width
@law
@given(seeds, st.integers(1, 7))
def test_hamming_is_numpys_and_a_metric(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits)
    distance = codes.hamming(codes)
    assert distance.dtype == np.int32
    assert np.array_equal(distance, (matrix[:, None] != matrix[None]).sum(2))
    assert np.array_equal(distance, distance.T)
    assert np.array_equal(distance == 0, (matrix[:, None] == matrix[None]).all(2))
    assert (distance[:, None, :] <= distance[:, :, None] + distance[None, :, :]).all()


@every_width
@law
@given(seeds, counts)
def test_counts_are_those_of_the_bits(bits, seed, nodes):
    codes, matrix = draw(seed, nodes, bits)
    assert np.array_equal(codes.popcount(), matrix.sum(1))
    assert np.array_equal(codes.firing_rates(), matrix.mean(0) if nodes else np.zeros(bits))


@every_width
@law
@given(seeds, counts, st.integers(1, 20))
def test_an_exact_head_gives_the_logits_of_any_float_product(bits, seed, nodes, classes):
    codes, matrix = draw(seed, nodes, bits)
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 6)
    weight, bias = rng.normal(size=(bits, classes)) * scale, rng.normal(size=classes) * scale
    rounded, offset = exact_head(weight, bias)
    logits = codes.linear(rounded, offset)
    assert np.array_equal(logits, matrix.astype(np.float32) @ rounded + offset)
    assert np.array_equal(logits, matrix.astype(np.float64) @ rounded + offset)
    reach = np.abs(weight).sum(0) + np.abs(bias)
    assert (np.abs(rounded - weight) <= 2.0**-22 * reach).all()
    assert (np.abs(offset - bias) <= 2.0**-22 * reach).all()
