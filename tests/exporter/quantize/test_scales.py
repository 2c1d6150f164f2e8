"""Recipes with scales in half precision: whoever restores a weight by them gets what the graph computes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from specexport.bundle import Precision
from specexport.exporter.recipe_choice import in_precision
from specexport.exporter.weights.recipe import Recipe, WeightRecipe

TYPES: dict[Precision, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
OWN = [WeightRecipe("int8", limit=127), WeightRecipe("int4", block=32), WeightRecipe("int4"), WeightRecipe("fp8")]
WEIGHT = np.random.default_rng(0).normal(size=(24, 96)).astype(np.float32)


def halved(own: WeightRecipe, precision: Precision) -> WeightRecipe:
    return in_precision(Recipe({"w": own}, ("kept",)), precision).weights["w"]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("own", OWN, ids=lambda own: f"{own.format}-{own.block}")
def test_scales_are_held_and_values_rounded_to_them(own: WeightRecipe, precision: Precision) -> None:
    half = halved(own, precision)
    values, scales = half.quantize(WEIGHT)
    plain, exact = own.quantize(WEIGHT)
    assert values.dtype == plain.dtype
    assert scales.dtype == np.float32
    np.testing.assert_array_equal(scales, scales.astype(TYPES[precision]).astype(np.float32))
    np.testing.assert_allclose(scales, exact, rtol=2**-8)
    # Not the values of the exact scales, which a scale that is off by up to 1/256 would take along.
    off = np.abs(half.restore(WEIGHT) - WEIGHT)
    step = np.repeat(scales.reshape(24, -1), 96 // scales.reshape(24, -1).shape[1], axis=1)
    inside = np.abs(WEIGHT / step) < {"int8": 127, "int4": 7, "fp8": 448}[own.format]
    if own.format != "fp8":
        assert (off[inside] <= step[inside] * 0.50001).all()
    else:
        assert (off[inside] <= np.maximum(np.abs(WEIGHT), step * 2.0**-6)[inside] / 16).all()


@pytest.mark.parametrize("own", OWN, ids=lambda own: f"{own.format}-{own.block}")
def test_tiny_rows_have_scales_above_zero(own: WeightRecipe) -> None:
    """fp16 ends at 6e-8; what is below a step is rounded to zero."""
    values, scales = halved(own, "fp16").quantize(WEIGHT * np.float32(1e-9))
    assert (scales.astype(np.float16) > 0).all()
    assert np.abs(values.astype(np.float32)).max() <= 1
