"""Values within their range, errors within their bound, scales that win against rounding to the nearest."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.exporter.weights.formats import Float32, int4_blocks, int8_blocks, int8_per_output, restore

RNG = np.random.default_rng(0)
# Rows of very different sizes, with outliers.
WEIGHT = (RNG.standard_t(4, (48, 128)) * np.exp2(RNG.integers(-20, 20, (48, 1)))).astype(np.float32)


def off(restored: Float32, weight: Float32 = WEIGHT, importance: Float32 | float = 1.0) -> float:
    """Squared error over squared size, each row alone, then their mean."""
    return float((((restored - weight) ** 2 * importance).sum(1) / (weight**2 * importance).sum(1)).mean())


@pytest.mark.parametrize("limit", [1, 64, 127])
def test_int8_keeps_its_limit_and_errs_by_half_a_step(limit: int) -> None:
    values, scales = int8_per_output(WEIGHT, limit)
    assert values.dtype == np.int8
    assert scales.shape == (48,)
    assert scales.dtype == np.float32
    assert (np.abs(values.astype(int)).max(axis=1) == limit).all()
    assert (np.abs(restore(values, scales) - WEIGHT) <= scales[:, None] * 0.50001).all()


def test_int8_by_blocks_is_int8_of_each_block() -> None:
    """A block of large numbers leaves the steps of its neighbours alone."""
    weight = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    weight[:, 4:8] *= 100
    values, scales = int8_blocks(weight, 4, 127)
    assert (values.shape, scales.shape) == ((5, 12), (5, 3))
    for block in range(3):
        part, own = int8_per_output(np.ascontiguousarray(weight[:, 4 * block : 4 * block + 4]), 127)
        assert np.array_equal(values[:, 4 * block : 4 * block + 4], part)
        assert np.array_equal(scales[:, block], own)
    assert np.all(np.abs(restore(values, scales) - weight).reshape(5, 3, 4) <= 0.5001 * scales[..., None])


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("block", [0, 16, 32, 128])
def test_int4_stays_in_range_and_beats_rounding_to_the_nearest(block: int, signed: bool) -> None:
    values, scales = int4_blocks(WEIGHT, block, None, signed)
    assert values.dtype == np.int8
    assert values.min() >= -8
    assert values.max() <= 7
    assert scales.shape == ((48,) if block == 0 else (48, 128 // block))
    assert signed or (scales > 0).all()
    blocks = WEIGHT.reshape(48, -1, block or 128)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(7)
    nearest = (np.rint(blocks / step) * step).reshape(WEIGHT.shape)
    assert off(restore(values, scales)) < 0.9 * off(nearest)


def test_signed_scales_give_the_magnitude_8_to_either_sign() -> None:
    weight = np.array([[8.0, -7, 3, 1], [-8, 7, 3, 1]], np.float32)
    values, scales = int4_blocks(weight, 4, None, True)
    assert (restore(values, scales) == weight).all()
    assert scales[0, 0] < 0 < scales[1, 0]


def test_importance_lowers_the_error_that_it_weighs() -> None:
    importance = np.exp2(RNG.integers(-6, 6, 128)).astype(np.float32)
    plain, weighed = int4_blocks(WEIGHT, 32), int4_blocks(WEIGHT, 32, importance)
    assert off(restore(*weighed), WEIGHT, importance) < 0.95 * off(restore(*plain), WEIGHT, importance)


def test_zeros_and_what_is_too_small_to_divide_by() -> None:
    weight = np.zeros((3, 32), np.float32)
    weight[1, 16] = 1.0
    weight[2] = 1e-44
    for values, scales in (int8_per_output(weight, 64), int4_blocks(weight, 16), int4_blocks(weight, 16, None, True)):
        assert np.isfinite(scales).all()
        assert (scales[0] == 1).all()
        assert not values[0].any()
        assert not values[2].any()
        assert restore(values, scales)[1, 16] == 1.0
