"""Each format, quantized and back, is what its values and scales say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specexport.exporter.weights.recipe import WeightRecipe

WEIGHT = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("recipe", "shape", "bound"),
    [
        (WeightRecipe("int8"), (6,), 0.013),
        (WeightRecipe("int8", limit=127), (6,), 0.0065),
        (WeightRecipe("fp8"), (6,), 0.03),
        (WeightRecipe("int4", block=16, importance=np.ones(64, np.float32)), (6, 4), 0.1),
        (WeightRecipe("int4"), (6,), 0.15),
    ],
    ids=["int8", "int8-127", "fp8", "int4", "int4-per-output"],
)
def test_restored_is_values_times_scales(recipe: WeightRecipe, shape: tuple[int, ...], bound: float) -> None:
    values, scales = recipe.quantize(WEIGHT)
    assert values.shape == WEIGHT.shape
    assert scales.shape == shape
    assert scales.dtype == np.float32
    restored = recipe.restore(WEIGHT)
    by_input = np.repeat(scales.reshape(6, -1), 64 // max(1, scales.reshape(6, -1).shape[1]), axis=1)
    assert np.array_equal(restored, values.astype(np.float32) * by_input)
    assert np.sqrt(np.square(restored - WEIGHT).mean()) < bound


def test_importance_and_sign_reach_the_search() -> None:
    importance = np.where(np.arange(64) % 8 == 0, 100, 0.01).astype(np.float32)
    plain = WeightRecipe("int4", block=32).restore(WEIGHT)
    weighed = WeightRecipe("int4", block=32, importance=importance).restore(WEIGHT)
    assert np.square(weighed - WEIGHT)[:, ::8].sum() < 0.8 * np.square(plain - WEIGHT)[:, ::8].sum()
    assert (WeightRecipe("int4", block=32, signed=True).quantize(WEIGHT)[1] < 0).any()


def test_float_is_the_weight_itself() -> None:
    assert WeightRecipe("float").restore(WEIGHT) is WEIGHT


@pytest.mark.parametrize(
    "wrong", [dict(block=-1), dict(limit=128), dict(limit=0), dict(input_scale=0.0), dict(input_scale=np.inf)]
)
def test_what_is_no_recipe(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        WeightRecipe("int8", **wrong)
