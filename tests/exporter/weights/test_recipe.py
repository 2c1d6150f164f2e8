"""Each format: values within their range, errors within their bound, scales that win against rounding to nearest."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from specexport.bundle import Precision
from specexport.exporter.weights.recipe import LARGEST, Float32, Recipe, WeightRecipe, restore
from support.recipes import in_precision

RNG = np.random.default_rng(0)
NORMAL = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
# Rows of very different sizes, with outliers.
WEIGHT = (RNG.standard_t(4, (48, 128)) * np.exp2(RNG.integers(-20, 20, (48, 1)))).astype(np.float32)
FORMATS = [
    WeightRecipe("int8"),
    WeightRecipe("int8", block=16),
    WeightRecipe("int8", limit=127),
    WeightRecipe("int4", block=32),
    WeightRecipe("int4", block=32, signed=True),
    WeightRecipe("int4"),
    WeightRecipe("fp8"),
]


def named(own: WeightRecipe) -> str:
    return f"{own.format}-{own.block}-{own.limit}{'-signed' * own.signed}"


def off(restored: Float32, importance: Float32 | float = 1.0) -> float:
    """Squared error over squared size, each row alone, then their mean."""
    return float((((restored - WEIGHT) ** 2 * importance).sum(1) / (WEIGHT**2 * importance).sum(1)).mean())


@pytest.mark.parametrize("own", FORMATS, ids=named)
def test_restored_is_values_times_scales(own: WeightRecipe) -> None:
    values, scales = own.quantize(NORMAL)
    assert values.dtype == (ml_dtypes.float8_e4m3fn if own.format == "fp8" else np.int8)
    assert scales.dtype == np.float32
    assert scales.shape == ((6, 64 // own.block) if own.block else (6,))
    by_input = np.repeat(scales.reshape(6, -1), 64 // max(1, scales.reshape(6, -1).shape[1]), axis=1)
    restored = own.restore(NORMAL)
    assert np.array_equal(restored, values.astype(np.float32) * by_input)
    bound = {"int8": 0.013 if own.limit == 64 else 0.0065, "fp8": 0.03, "int4": 0.15}[own.format]
    assert np.sqrt(np.square(restored - NORMAL).mean()) < bound


@pytest.mark.parametrize("limit", [1, 64, 127])
def test_int8_keeps_its_limit_and_errs_by_half_a_step(limit: int) -> None:
    values, scales = WeightRecipe("int8", limit=limit).quantize(WEIGHT)
    assert (np.abs(values.astype(int)).max(axis=1) == limit).all()
    assert (np.abs(restore(values, scales) - WEIGHT) <= scales[:, None] * 0.50001).all()


def test_int8_by_blocks_is_int8_of_each_block() -> None:
    """A block of large numbers leaves the steps of its neighbours alone."""
    weight = NORMAL[:, :12].copy()
    weight[:, 4:8] *= 100
    values, scales = WeightRecipe("int8", block=4, limit=127).quantize(weight)
    for block in range(3):
        part, own = WeightRecipe("int8", limit=127).quantize(weight[:, 4 * block : 4 * block + 4])
        assert np.array_equal(values[:, 4 * block : 4 * block + 4], part)
        assert np.array_equal(scales[:, block], own)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("block", [0, 16, 128])
def test_int4_stays_in_range_and_beats_rounding_to_the_nearest(block: int, signed: bool) -> None:
    values, scales = WeightRecipe("int4", block=block, signed=signed).quantize(WEIGHT)
    assert values.min() >= -8
    assert values.max() <= 7
    assert signed or (scales > 0).all()
    blocks = WEIGHT.reshape(48, -1, block or 128)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(7)
    nearest = (np.rint(blocks / step) * step).reshape(WEIGHT.shape)
    assert off(restore(values, scales)) < 0.9 * off(nearest)


def test_signed_scales_give_the_magnitude_8_to_either_sign() -> None:
    weight = np.array([[8.0, -7, 3, 1], [-8, 7, 3, 1]], np.float32)
    values, scales = WeightRecipe("int4", block=4, signed=True).quantize(weight)
    assert (restore(values, scales) == weight).all()
    assert scales[0, 0] < 0 < scales[1, 0]


def test_importance_lowers_the_error_that_it_weighs() -> None:
    importance = np.exp2(RNG.integers(-6, 6, 128)).astype(np.float32)
    plain, weighed = (WeightRecipe("int4", block=32, importance=own).restore(WEIGHT) for own in (None, importance))
    assert off(weighed, importance) < 0.95 * off(plain, importance)


def test_fp8_errs_by_a_sixteenth_at_most_and_never_overflows() -> None:
    weight = (RNG.standard_normal((16, 64)) * np.exp2(RNG.integers(-10, 10, (16, 1)))).astype(np.float32)
    values, scales = WeightRecipe("fp8").quantize(weight)
    assert (np.abs(values.astype(np.float32)).max(axis=1) == LARGEST).all()
    # Three bits after the point; below 2^-6 the steps are 2^-9.
    bound = np.maximum(np.abs(weight) / 16, scales[:, None] * 2.0**-10) * 1.0001
    assert (np.abs(restore(values, scales) - weight) <= bound).all()
    wide = np.exp2(RNG.uniform(-100, 100, (4096, 1))).astype(np.float32)
    assert np.allclose(WeightRecipe("fp8").restore(wide), wide, rtol=1e-6)


@pytest.mark.parametrize("own", FORMATS, ids=named)
def test_zeros_and_what_is_too_small_to_divide_by(own: WeightRecipe) -> None:
    weight = np.zeros((3, 32), np.float32)
    weight[1, 16] = 1.0
    weight[2] = 1e-44
    values, scales = own.quantize(weight)
    assert np.isfinite(scales).all()
    assert (scales[0] == 1).all()
    assert not values[0].any()
    assert not values[2].any()
    assert restore(values, scales)[1, 16] == 1.0


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("own", [own for own in FORMATS if not own.signed], ids=named)
def test_values_are_rounded_to_scales_in_half_precision(own: WeightRecipe, precision: Precision) -> None:
    """Not to the exact scales: the held one is off by up to 1/256, which would multiply the largest values."""
    half = in_precision(Recipe({"w": own}), precision).weights["w"]
    _, scales = half.quantize(NORMAL)
    kind: Any = np.float16 if precision == "fp16" else ml_dtypes.bfloat16
    np.testing.assert_array_equal(scales, scales.astype(kind).astype(np.float32))
    np.testing.assert_allclose(scales, own.quantize(NORMAL)[1], rtol=2**-8)
    wrong = np.abs(half.restore(NORMAL) - NORMAL)
    step = np.repeat(scales.reshape(6, -1), 64 // scales.reshape(6, -1).shape[1], axis=1)
    inside = np.abs(NORMAL / step) < {"int8": own.limit, "int4": 7, "fp8": 448}[own.format]
    if own.format == "fp8":
        assert (wrong[inside] <= np.maximum(np.abs(NORMAL), step * 2.0**-6)[inside] / 16).all()
    else:
        assert (wrong[inside] <= step[inside] * 0.50001).all()
    tiny, small = half.quantize(NORMAL * np.float32(1e-9))
    if precision == "fp16":  # which ends at 6e-8: what is below a step is rounded to zero
        assert (small.astype(np.float16) > 0).all()
        assert np.abs(tiny.astype(np.float32)).max() <= 1


@pytest.mark.parametrize(
    "wrong", [dict(block=-1), dict(limit=128), dict(limit=0), dict(input_scale=0.0), dict(input_scale=np.inf)]
)
def test_what_is_no_recipe(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        WeightRecipe("int8", **wrong)
