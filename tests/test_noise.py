"""Random choices by hash: unbiased, independent of each other, the same in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikegcl import kernels, noise

ROWS, COLUMNS = torch.arange(400)[:, None], torch.arange(300)[None]


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.5, 0.9])
def test_the_requested_share_is_dropped_everywhere(drop):
    kept = noise.keep(7, ROWS, COLUMNS, drop).float()
    for share in (kept.mean(), kept.mean(0).mean(), kept[:, ::2].mean(), kept[::2].mean()):
        assert float(share) == pytest.approx(1 - drop, abs=0.01)
    assert float(kept.mean(0).std()) < 0.04  # no column is favoured beyond chance
    assert float(kept.mean(1).std()) < 0.04


def test_other_keys_are_other_independent_choices():
    a, b = (noise.keep(noise.derive(0, "dropout", step), ROWS, COLUMNS, 0.5).float() for step in (1, 2))
    assert float(((a - 0.5) * (b - 0.5)).mean() * 4) == pytest.approx(0, abs=0.01)


def test_the_kernel_makes_the_same_choices():
    x = np.ones((300, 400), np.float32)
    out = np.empty((400, 300), np.float32)
    kernels.take_columns(x, np.arange(300), np.arange(400, dtype=np.int32), 99, noise.cutoff(0.3), np.float32(1), out)
    assert np.array_equal(out > 0, noise.keep(99, ROWS, COLUMNS, 0.3).numpy())


def test_keys_depend_on_every_part():
    keys = {noise.derive(seed, place, epoch) for seed in range(5) for place in ("a", "b") for epoch in range(5)}
    assert len(keys) == 50
    assert all(0 <= key < 2**32 for key in keys)


def test_generators_are_reproducible():
    first, again = (torch.rand(3, generator=noise.generator(1, "x")) for _ in range(2))
    assert torch.equal(first, again)
