"""Weights in the layouts that the kernels read (`Product` in kernels/src/kernels.h): panels of 16 outputs.

Padding is zero, and no output or input of it is ever seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...bundle import CacheLayer

PANEL, BLOCK = 16, 32
# The elements of a vector: what the size of a head is a multiple of.
LANES = 16
# What a format of floats is called in operators and initializers, with its type: the smallest that holds a weight.
FLOAT_FORMATS: dict[str, tuple[str, ir.DataType]] = {
    "bf16": ("BFloat16", ir.DataType.BFLOAT16),
    "fp16": ("Float16", ir.DataType.FLOAT16),
    "fp32": ("Float", ir.DataType.FLOAT),
}

Array = NDArray[Any]


def whole_vectors(layers: tuple[CacheLayer, ...]) -> tuple[CacheLayer, ...]:
    """Caches with heads as wide as the kernels' attention takes them: what is more is padding."""
    return tuple(replace(layer, head_dim=-(-layer.head_dim // LANES) * LANES) for layer in layers)


def float_format(weight: NDArray[np.float32]) -> str:
    """The smallest of `FLOAT_FORMATS` that holds all values exactly."""
    if not (weight.view(np.uint32) & 0xFFFF).any():
        return "bf16"
    with np.errstate(over="ignore"):
        return "fp16" if np.array_equal(weight.astype(np.float16).astype(np.float32), weight) else "fp32"


def float_panels(weight: Array, form: str) -> Array:
    """`[N, K]`, or scales of int4 `[N, K / 32]`, to `[N / 16, K, 16]` in a format that holds them exactly."""
    dtype = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}[form]
    padded = _padded(weight.astype(dtype, copy=False), PANEL, 1)
    return np.ascontiguousarray(padded.reshape(-1, PANEL, weight.shape[1]).transpose(0, 2, 1))


def floats_in_panels(name: str, weight: Callable[[], Array], size: tuple[int, int], form: str) -> ir.Value:
    """A stored weight of `size`, (N, K), whose panels are in memory only while they are written."""
    outputs, inputs = size
    dtype, shape = FLOAT_FORMATS[form][1], ir.Shape([-(-outputs // PANEL), inputs, PANEL])
    tensor = ir.LazyTensor(lambda: ir.tensor(float_panels(weight(), form)), dtype=dtype, shape=shape, name=name)
    return ir.val(name, dtype, shape, const_value=tensor)


def int8_panels(values: Array) -> Array:
    """`[N, K] int8` within +-127 to `[N / 16, K / 4, 16, 4]`."""
    padded = _padded(values, PANEL, 4)
    return np.ascontiguousarray(padded.reshape(-1, PANEL, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def int4_panels(values: Array) -> Array:
    """`[N, K]` from -8 to 7 to `[N / 16, K / 32, 4, 64] uint8`.

    8 stands for 0. Of a block, low halves hold inputs 0 to 15 and high ones 16 to 31.
    """
    padded = (_padded(values, PANEL, BLOCK) + 8).astype(np.uint8)
    blocks = padded.reshape(-1, PANEL, padded.shape[1] // BLOCK, 2, 4, 4)
    both = blocks[:, :, :, 0] | blocks[:, :, :, 1] << 4
    return np.ascontiguousarray(both.transpose(0, 2, 3, 1, 4).reshape(-1, blocks.shape[2], 4, 4 * PANEL))


def _padded(matrix: Array, rows: int, columns: int) -> Array:
    more = [(0, -length % multiple) for length, multiple in zip(matrix.shape, (rows, columns), strict=True)]
    return np.pad(matrix, more) if any(end for _, end in more) else matrix
