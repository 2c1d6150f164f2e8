"""Recipes whose scales are of the type that a graph computes in.

TensorRT reads from its scale which type a DequantizeLinear gives, and fuses one that gives int4 blocks with its product
only when that is the product's type (TensorRT-RTX 1.7.1, see docs/quantization.md: scales in fp32 with a Cast are a
kernel of their own, which writes out the weight in half precision in every pass). So scales are rounded to half
precision before the values are, and whoever restores a weight by its recipe gets what the graph computes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...bundle import Precision
from ...calibration.weights.floats import LARGEST
from ...calibration.weights.integers import INT4_HIGH, INT4_LOW, Float32, row_slices
from ...calibration.weights.recipe import Recipe, WeightRecipe

TYPES: dict[Precision, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
# Positive whatever is rounded to them: a scale of 0 is refused by TensorRT.
LEAST: dict[Precision, float] = {"fp16": 2.0**-24, "bf16": 2.0**-126}


@dataclass(frozen=True, eq=False)
class HalfScales(WeightRecipe):
    """A recipe with scales that `precision` holds; it gives them as float32."""

    precision: Precision = "fp16"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert not self.signed, "TensorRT takes positive scales only"
        assert self.input_scale is None or self.input_scale == float(
            rounded(np.float32(self.input_scale), self.precision)
        )

    def quantize(self, weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
        values, scales = super().quantize(weight)
        held = rounded(scales, self.precision)
        if self.stored is not None:
            assert np.array_equal(held, scales), "values were chosen for scales that this precision does not hold"
            return values, scales
        # To the scales as they are now: what a rounded scale does to a value is less than half a step then.
        grouped = held.reshape(len(held), -1, 1)
        for rows in row_slices(weight.shape):
            blocks = weight[rows].reshape(-1, grouped.shape[1], weight.shape[1] // grouped.shape[1]) / grouped[rows]
            values[rows] = self._rounded(blocks).reshape(-1, weight.shape[1])
        return values, held

    def _rounded(self, blocks: Float32) -> npt.NDArray[Any]:
        if self.format == "fp8":
            return np.clip(blocks, -LARGEST, LARGEST)
        low, high = (-self.limit, self.limit) if self.format == "int8" else (INT4_LOW, INT4_HIGH)
        return np.clip(np.rint(blocks), low, high)


def in_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The same, for graphs whose other values are of `precision`; in fp32 it is the recipe itself."""
    if precision == "fp32":
        return recipe
    weights = {name: _halved(own, precision) for name, own in recipe.weights.items()}
    return replace(recipe, weights=weights)


def rounded(scales: Any, precision: Precision) -> Any:
    """float32 that `precision` holds, positive."""
    return np.maximum(scales, LEAST[precision]).astype(TYPES[precision]).astype(np.float32)


def _halved(own: WeightRecipe, precision: Precision) -> WeightRecipe:
    given = {field.name: getattr(own, field.name) for field in fields(WeightRecipe)}
    if own.input_scale is not None:
        given["input_scale"] = float(rounded(np.float32(own.input_scale), precision))
    return HalfScales(**given, precision=precision)
