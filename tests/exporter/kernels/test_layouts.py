"""Weights in panels, number by number as `Product` in kernels/src/kernels.h says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from specexport.bundle import CacheLayer
from specexport.exporter.kernels.layouts import (
    FLOAT_FORMATS,
    float_format,
    float_panels,
    int4_panels,
    int8_panels,
    whole_vectors,
)

# (N, K): whole panels and blocks, and neither.
SHAPES = [(32, 64), (37, 45), (1, 1), (16, 32)]
SHAPED = pytest.mark.parametrize("shape", SHAPES, ids=str)


def integers(shape: tuple[int, int], low: int, high: int) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape, np.int8, endpoint=True)


@SHAPED
def test_int8(shape: tuple[int, int]) -> None:
    weight = integers(shape, -127, 127)
    outputs, inputs = shape
    panels = int8_panels(weight)
    assert panels.shape == (-(-outputs // 16), -(-inputs // 4), 16, 4)
    assert panels.flags.c_contiguous
    wanted = np.zeros_like(panels)
    for output in range(outputs):
        for place in range(inputs):
            wanted[output // 16, place // 4, output % 16, place % 4] = weight[output, place]
    np.testing.assert_array_equal(panels, wanted)


@SHAPED
def test_int4(shape: tuple[int, int]) -> None:
    weight = integers(shape, -8, 7)
    outputs, inputs = shape
    panels = int4_panels(weight)
    assert (panels.shape, panels.dtype) == ((-(-outputs // 16), -(-inputs // 32), 4, 64), np.uint8)
    assert panels.flags.c_contiguous
    wanted = np.full((*panels.shape[:3], 16, 4, 2), 8, np.uint8)  # low and high half
    for output in range(outputs):
        for place in range(inputs):
            within = place % 32
            at = (output // 16, place // 32, within % 16 // 4, output % 16, within % 4, within // 16)
            wanted[at] = weight[output, place] + 8
    np.testing.assert_array_equal(panels, (wanted[..., 0] | wanted[..., 1] << 4).reshape(panels.shape))


@SHAPED
@pytest.mark.parametrize("form", FLOAT_FORMATS)
def test_floats(form: str, shape: tuple[int, int]) -> None:
    weight = integers(shape, -127, 127).astype(np.float32)
    panels = float_panels(weight, form)
    assert panels.dtype == {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}[form]
    assert FLOAT_FORMATS[form][1].numpy() == panels.dtype
    assert panels.flags.c_contiguous
    wanted = np.zeros((-(-shape[0] // 16), shape[1], 16), np.float32)
    for output in range(shape[0]):
        wanted[output // 16, :, output % 16] = weight[output]
    np.testing.assert_array_equal(panels.astype(np.float32), wanted)


# The smallest numbers of a format, what is just below, and what no smaller format has.
@pytest.mark.parametrize(
    ("value", "form"),
    [
        (1.0, "bf16"),
        (-0.0, "bf16"),
        (2.0**-133, "bf16"),  # subnormal in bf16
        (2.0**-134, "fp32"),
        (3.0e38, "fp32"),
        (float(np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)), "bf16"),  # infinite in fp16
        (1 + 2.0**-7, "bf16"),
        (1 + 2.0**-8, "fp16"),
        (1 + 2.0**-10, "fp16"),
        (1 + 2.0**-11, "fp32"),
        (65504.0, "fp16"),
        (65504.0 + 2, "fp32"),
        (2.0**-24 * 513, "fp16"),  # subnormal in fp16
        (2.0**-25 * 513, "fp32"),
        (np.inf, "bf16"),
        (np.nan, "bf16"),
    ],
)
def test_the_smallest_format_that_holds_a_value(value: float, form: str) -> None:
    weight = np.ones((2, 3), np.float32)
    assert float_format(weight) == "bf16"
    weight[1, 2] = value
    assert float_format(weight) == form
    held = float_panels(weight, form)[0, :, :2].T.astype(np.float32)
    assert held.tobytes() == weight.tobytes()


def test_values_of_both_half_formats_need_all_bits() -> None:
    weight = np.array([[1 + 2.0**-10, 2.0**-100]], np.float32)
    assert [float_format(weight[:, place : place + 1].copy()) for place in (0, 1)] == ["fp16", "bf16"]
    assert float_format(weight) == "fp32"


def test_what_is_not_a_number_in_other_bits_stays() -> None:
    odd = np.array([[0x7F800001]], np.uint32).view(np.float32)
    assert float_format(odd) == "fp32"


def test_caches_have_heads_of_whole_vectors() -> None:
    layers = whole_vectors((CacheLayer(2, 8), CacheLayer(2, 16), CacheLayer(1, 17), CacheLayer(0, 0)))
    assert [(layer.num_kv_heads, layer.head_dim) for layer in layers] == [(2, 16), (2, 16), (1, 32), (0, 0)]
