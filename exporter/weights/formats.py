"""Weights as few bits with scales: int8, int4 and fp8.

Weights as integers with scales: int8 with a scale per output or block, int4 with a scale per block of inputs.

Weights in fp8 (e4m3, as ONNX's FLOAT8E4M3FN) with one scale per output.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float32: TypeAlias = npt.NDArray[np.float32]
Int8: TypeAlias = npt.NDArray[np.int8]

INT4_LOW, INT4_HIGH = -8, 7
# Candidate scales, relative to the one that covers the largest magnitude; smaller ones clip.
RATIOS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
# Elements per slice of a search: few enough to stay in the CPU's cache (twice as fast as a million).
SLICE = 1 << 17


def int8_per_output(weight: Float32, limit: int) -> tuple[Int8, Float32]:
    """(values [N, K] in [-limit, limit], scales [N]). weight: [N, K], finite.

    A row's largest magnitude becomes the limit. Rounds half to even, as ONNX's QuantizeLinear does. A row of zeros gets
    the scale 1.
    """
    values = np.empty(weight.shape, np.int8)
    scales = per_output(weight, limit)
    for rows in row_slices(weight.shape):
        values[rows] = np.clip(np.rint(weight[rows] / scales[rows, None]), -limit, limit)
    return values, scales


def int8_blocks(weight: Float32, block: int, limit: int) -> tuple[Int8, Float32]:
    """Like `int8_per_output`, with a scale for each `block` inputs: scales [N, K / block]. K is a multiple of block."""
    outputs, inputs = weight.shape
    values, scales = int8_per_output(weight.reshape(-1, block), limit)
    return values.reshape(outputs, inputs), scales.reshape(outputs, inputs // block)


def int4_blocks(
    weight: Float32, block: int, importance: Float32 | None = None, signed: bool = False
) -> tuple[Int8, Float32]:
    """(values [N, K] in [-8, 7], scales [N, K / block]). weight: [N, K], finite, K a multiple of block.

    importance: [K], the inputs' mean squares. block 0: one scale per output, scales [N]. A block's scale is the one of
    a small grid with the least squared error, weighted by importance (the diagonal of the layer's output error: AWQ's
    clip search, Lin et al. 2023, arXiv 2306.00978, section 3.2), then refitted to the values by least squares. signed:
    scales may be negative, so that the value -8 is used for the sign with the larger magnitude; TensorRT allows no
    negative scales. Blocks of zeros get the scale 1.
    """
    outputs, inputs = weight.shape
    size = block or inputs
    count = inputs // size
    values = np.empty(weight.shape, np.int8)
    scales = np.empty((outputs, count), np.float32)
    importances = (
        np.ones((1, count, size), np.float32)
        if importance is None
        else _usable_importance(importance).reshape(1, count, size)
    )
    for rows in row_slices(weight.shape):
        blocks = weight[rows].reshape(-1, count, size)
        scales[rows] = _search(blocks, importances, signed)
        values[rows] = _rounded(blocks, scales[rows, :, None]).reshape(-1, inputs)
    return values, scales if block else scales[:, 0]


def restore(values: npt.NDArray[Any], scales: Float32) -> Float32:
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
    values = _rounded(blocks, scale[..., None])
    weighed = values * importance
    down = np.einsum("rcs,rcs->rc", weighed, values)
    fitted = np.einsum("rcs,rcs->rc", weighed, blocks) / np.where(down > 0, down, np.float32(1))
    return np.where((down > 0) & (fitted * scale > 0), fitted, scale)


def _error(blocks: Float32, importance: Float32, scale: Float32) -> Float32:
    off = _rounded(blocks, scale[..., None])
    off *= scale[..., None]
    off -= blocks
    np.square(off, out=off)
    off *= importance
    error: Float32 = off.sum(axis=2)
    return error


def _rounded(blocks: Float32, scale: Float32) -> Float32:
    values: Float32 = np.rint(blocks / scale)
    return np.clip(values, INT4_LOW, INT4_HIGH, out=values)


def per_output(weight: Float32, limit: float) -> Float32:
    """The scales [N] that map each row's largest magnitude to `limit`."""
    return _usable_scales(np.maximum(weight.max(axis=1), -weight.min(axis=1)) / np.float32(limit))


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


# The largest finite e4m3 (Micikevicius et al. 2022, arXiv 2209.05433, table 1).
LARGEST = 448.0


def fp8_per_output(weight: Float32) -> tuple[npt.NDArray[Any], Float32]:
    """(values [N, K] as ml_dtypes.float8_e4m3fn, scales [N]). weight: [N, K]. A row of zeros gets the scale 1."""
    import ml_dtypes

    scales = per_output(weight, LARGEST)
    values = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
    for rows in row_slices(weight.shape):
        # Clipped first: e4m3fn has no infinity, and values that round above 448 would become NaN.
        values[rows] = np.clip(weight[rows] / scales[rows, None], -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return values, scales
