"""The quantization recipe of a model: which integers and scales each weight becomes, by the name of its parameter.

How a graph or a kernel computes with them is not said here (`exporter/quantize/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...bundle import Format as Format
from ...bundle import Precision
from .formats import (
    LARGEST,
    Float32,
    Int8,
    Values,
    bounds,
    cast_scales,
    int4_scales,
    largest_scales,
    restore,
    round_weight,
)

BITS: dict[Format, int] = {"float": 32, "int8": 8, "fp8": 8, "int4": 4}
SCALE_BYTES = 4
# Limits of int8 weights: the first also works where x86's products saturate, the second where they do not.
SATURATING_LIMIT, LARGEST_LIMIT = 64, 127


@dataclass(frozen=True, eq=False)
class WeightRecipe:
    """How one weight [N, K] is quantized: N outputs (rows of a table), K inputs.

    block: inputs per scale, for int4, for CUDA, and for int8 tables that are only looked up; 0: one scale per output.
    limit: for int8, the largest magnitude (64 keeps the sums of pairs of x86's int8 products below 2^15; TensorRT takes
    127).
    importance: for int4, [K], the mean square of each input, which weights the error in the search for scales.
    signed: for int4, whether scales may be negative (ONNX Runtime's MatMulNBits allows it, TensorRT does not).
    scale_type: what scales are rounded to, before values are. TensorRT fuses int4 blocks with their product only where
    scales have the product's type (`test_tensorrt_builds.py`).
    input_scale: static scale of the activations, such that x / input_scale is in the format's range; None for one scale
    per row.
    stored: values and scales that were chosen for this weight (`gptq.py`); None for rounding to nearest.
    weight_only: for int8 and fp8, whether the activations stay unquantized.
    """

    format: Format
    block: int = 0
    limit: int = SATURATING_LIMIT
    importance: Float32 | None = None
    signed: bool = False
    scale_type: Precision = "fp32"
    input_scale: float | None = None
    stored: tuple[Int8, Float32] | None = None
    weight_only: bool = False

    def __post_init__(self) -> None:
        assert self.block >= 0
        assert 1 <= self.limit <= LARGEST_LIMIT
        assert self.input_scale is None or 0 < self.input_scale < np.inf
        assert self.scale_type == "fp32" or not self.signed, "TensorRT takes positive scales only"

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest stored value."""
        return bounds(self.format, self.limit)

    def scales(self, weight: Float32) -> Float32:
        """[N] or [N, K / block] of `scale_type`, in float32. weight: [N, K] float32, finite."""
        size = self.block or weight.shape[1]
        if self.format == "int4":
            scales = int4_scales(weight, size, self.importance, self.signed)
        else:
            largest = LARGEST if self.format == "fp8" else self.limit
            scales = largest_scales(weight.reshape(-1, size), largest).reshape(len(weight), -1)
        return cast_scales(scales if self.block else scales[:, 0], self.scale_type)

    def quantize(self, weight: Float32) -> tuple[Values, Float32]:
        """Quantize a weight [N, K] float32, finite.

        Returns values [N, K] (int8; fp8: ml_dtypes.float8_e4m3fn) and scales [N] or [N, K / block].
        """
        assert self.format != "float", "a float weight has no values and scales"
        if self.stored is not None:
            assert self.stored[0].shape == weight.shape, "values were chosen for a weight of another shape"
            return self.stored
        scales = self.scales(weight)
        return round_weight(weight, scales, self.format, self.limit), scales

    def stored_bytes(self, outputs: int, inputs: int) -> float:
        """Bytes of a weight [outputs, inputs], with scales of 4 bytes."""
        blocks = inputs // self.block if self.block else 1
        return outputs * inputs * BITS[self.format] / 8 + SCALE_BYTES * outputs * blocks * (self.format != "float")

    def restore(self, weight: Float32) -> Float32:
        """Quantize and dequantize, [N, K] float32: the weight that the engine computes with."""
        return weight if self.format == "float" else restore(*self.quantize(weight))


@dataclass(frozen=True, eq=False)
class Recipe:
    """weights: by parameter name; all other parameters stay as they are. notes: what is kept in a higher format, and
    why.
    """

    weights: Mapping[str, WeightRecipe]
    notes: tuple[str, ...] = ()
