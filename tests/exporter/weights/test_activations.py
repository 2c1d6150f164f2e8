"""Rounded activations, against the integers that an engine computes with."""

from __future__ import annotations

import numpy as np
import torch
from specexport.exporter.weights.fake_quant import rounded_activations
from specexport.exporter.weights.recipe import WeightRecipe

X = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)) * torch.exp2(torch.arange(5) * 4.0)[:, None]


def test_a_scale_a_row_as_uint8_with_zero_point_128() -> None:
    x = X.numpy()
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    values = np.clip(np.rint(x / scale) + 128, 0, 255).astype(np.uint8)
    expected = (values.astype(np.int32) - 128).astype(np.float32) * scale
    assert np.array_equal(rounded_activations(X, WeightRecipe("int8")).numpy(), expected)


def test_a_static_scale_rounds_half_to_even_and_saturates() -> None:
    x = torch.tensor([0.25, 0.75, -0.25, 63.4, 70.0, -64.0, -99.0])
    found = rounded_activations(x, WeightRecipe("int8", input_scale=0.5))
    assert found.tolist() == [0, 1, 0, 63.5, 63.5, -64, -64]


def test_fp8_saturates_and_keeps_three_bits() -> None:
    x = torch.tensor([1.0, 1.05, 500.0, -1e9])
    assert rounded_activations(x, WeightRecipe("fp8", input_scale=1.0)).tolist() == [1, 1, 448, -448]
    by_row = rounded_activations(X, WeightRecipe("fp8"))
    assert torch.equal(by_row.abs().amax(1), X.abs().amax(1))
    assert not torch.equal(by_row, X)


def test_weight_only_formats_leave_them_and_zeros_stay_zeros() -> None:
    assert rounded_activations(X, WeightRecipe("int4", block=32)) is X
    assert rounded_activations(X, WeightRecipe("float")) is X
    assert not rounded_activations(torch.zeros(2, 4), WeightRecipe("int8")).any()
