"""The quantization recipe of a model: which integers and scales each weight becomes, by the name of its parameter.

Number formats are int8, int4 and fp8 (e4m3, as ONNX's FLOAT8E4M3FN), all symmetric, with scales. A scale belongs to one
output of a weight [N, K], or to a block of its inputs. How a graph or a kernel computes with them is not said here
(`exporter/quantize/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...bundle import Format as Format
from ...bundle import Precision

Float32: TypeAlias = npt.NDArray[np.float32]
Int8: TypeAlias = npt.NDArray[np.int8]
Values: TypeAlias = npt.NDArray[Any]

INT4_LOW, INT4_HIGH = -8, 7
# The largest finite e4m3 (Micikevicius et al. 2022, arXiv 2209.05433, table 1).
LARGEST = 448.0
# Candidate scales of int4, relative to the one that covers the largest magnitude; smaller ones clip.
RATIOS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
# Elements per slice of a search: few enough to stay in the CPU's cache (twice as fast as a million).
SLICE = 1 << 17
# The least scale of each type, positive: TensorRT refuses a scale of 0.
LEAST: dict[Precision, float] = {"fp16": 2.0**-24, "bf16": 2.0**-126}
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
        if self.format == "int8":
            return -self.limit, self.limit
        return (INT4_LOW, INT4_HIGH) if self.format == "int4" else (-LARGEST, LARGEST)

    def scales(self, weight: Float32) -> Float32:
        """[N] or [N, K / block] of `scale_type`, in float32. weight: [N, K] float32, finite."""
        size = self.block or weight.shape[1]
        if self.format == "int4":
            scales = int4_scales(weight, size, self.importance, self.signed)
        else:
            blocks = weight.reshape(len(weight), -1, size)
            scales = _usable_scales(np.maximum(blocks.max(2), -blocks.min(2)) / np.float32(self.bounds[1]))
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
        return self._rounded(weight, scales), scales

    def _rounded(self, weight: Float32, scales: Float32) -> Values:
        """Half to even, as ONNX's QuantizeLinear does."""
        import ml_dtypes

        values: Values = np.empty(weight.shape, ml_dtypes.float8_e4m3fn if self.format == "fp8" else np.int8)
        grouped = scales.reshape(len(weight), -1, 1)
        for rows in row_slices(weight.shape):
            blocks = weight[rows].reshape(-1, grouped.shape[1], weight.shape[1] // grouped.shape[1]) / grouped[rows]
            # Clipped first: e4m3fn has no infinity, and values that round above 448 would become NaN.
            clipped = np.clip(blocks if self.format == "fp8" else np.rint(blocks), *self.bounds)
            values[rows] = clipped.reshape(-1, weight.shape[1]).astype(values.dtype)
        return values

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


def int4_scales(weight: Float32, block: int, importance: Float32 | None, signed: bool) -> Float32:
    """Scales [N, K / block] for int4. weight: [N, K], finite, K a multiple of block.

    importance: [K], the inputs' mean squares. A block's scale is the one of a small grid with the least squared error,
    weighted by importance (the diagonal of the layer's output error: AWQ's clip search, Lin et al. 2023, arXiv
    2306.00978, section 3.2), then refitted to the values by least squares. signed: scales may be negative, so that the
    value -8 is used for the sign with the larger magnitude. Blocks of zeros get the scale 1.
    """
    outputs, inputs = weight.shape
    count = inputs // block
    weights_of_errors = (
        np.ones((1, count, block), np.float32)
        if importance is None
        else _usable_importance(importance).reshape(1, count, block)
    )
    scales = np.empty((outputs, count), np.float32)
    for rows in row_slices(weight.shape):
        scales[rows] = _search(weight[rows].reshape(-1, count, block), weights_of_errors, signed)
    return scales


def cast_scales(scales: Float32, precision: Precision) -> Float32:
    """The scales in float32, rounded to what `precision` holds, and positive there."""
    import ml_dtypes

    if precision == "fp32":
        return scales
    held = np.maximum(scales, np.float32(LEAST[precision]))
    return held.astype(np.float16 if precision == "fp16" else ml_dtypes.bfloat16).astype(np.float32)


def restore(values: Values, scales: Float32) -> Float32:
    """values * scales, [N, K] float32, rounded once. values: [N, K]. scales: [N] or [N, K / block]."""
    outputs, inputs = values.shape
    restored = np.empty(values.shape, np.float32)
    grouped = scales.reshape(outputs, -1, 1)
    for rows in row_slices(values.shape):
        blocks = values[rows].astype(np.float32).reshape(-1, grouped.shape[1], inputs // grouped.shape[1])
        restored[rows] = (blocks * grouped[rows]).reshape(-1, inputs)
    return restored


def row_slices(shape: tuple[int, ...]) -> list[slice]:
    """Slices of rows with at most SLICE elements each, but at least one row."""
    step = max(1, SLICE // max(1, shape[1]))
    return [slice(start, start + step) for start in range(0, shape[0], step)]


def _search(blocks: Float32, importance: Float32, signed: bool) -> Float32:
    """Scales [rows, count] with the least weighted error; ties go to the larger ratio. blocks: [rows, count, size]."""
    high, low = blocks.max(axis=2), blocks.min(axis=2)
    if signed:
        whole = np.where(high > -low, high, low) / np.float32(INT4_LOW)
    else:
        whole = np.maximum(high / np.float32(INT4_HIGH), low / np.float32(INT4_LOW))
    best = _usable_scales(whole)
    least = np.full(best.shape, np.inf, np.float32)
    for ratio in RATIOS:
        tried = _usable_scales(whole * np.float32(ratio))
        error = _error(blocks, importance, tried)
        better = error < least
        best, least = np.where(better, tried, best), np.where(better, error, least)
    fitted = _refit(blocks, importance, best)
    # The fitted scale may round to other values, which may be worse.
    return np.where(_error(blocks, importance, fitted) < least, fitted, best)


def _refit(blocks: Float32, importance: Float32, scale: Float32) -> Float32:
    """The scale with the least weighted error for the values that `scale` rounds to."""
    values = _rounded(blocks, scale)
    weighted = values * importance
    down = np.einsum("rcs,rcs->rc", weighted, values)
    fitted = np.einsum("rcs,rcs->rc", weighted, blocks) / np.where(down > 0, down, np.float32(1))
    return np.where((down > 0) & (fitted * scale > 0), fitted, scale)


def _error(blocks: Float32, importance: Float32, scale: Float32) -> Float32:
    off = _rounded(blocks, scale)
    off *= scale[..., None]
    off -= blocks
    np.square(off, out=off)
    off *= importance
    error: Float32 = off.sum(axis=2)
    return error


def _rounded(blocks: Float32, scale: Float32) -> Float32:
    values: Float32 = np.rint(blocks / scale[..., None])
    return np.clip(values, INT4_LOW, INT4_HIGH, out=values)


def _usable_scales(scales: Float32) -> Float32:
    """`scales`, with 1 in place of those that are too small to divide by."""
    usable: Float32 = np.where(np.abs(scales) >= np.finfo(np.float32).tiny, scales, np.float32(1))
    return usable


def _usable_importance(importance: Float32) -> Float32:
    """`importance` scaled to a mean of 1, at least 1e-4: a channel that is 0 in calibration may be used later."""
    mean = float(importance.mean(dtype=np.float64))
    if not mean > 0:
        return np.ones_like(importance)
    scaled: Float32 = np.maximum(importance / np.float32(mean), np.float32(1e-4))
    return scaled
