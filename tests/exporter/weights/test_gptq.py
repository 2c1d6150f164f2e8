"""GPTQ against its definition, worked out slowly, and against rounding to nearest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specexport.exporter.weights.formats import Float32, int4_blocks, int8_per_output, restore
from specexport.exporter.weights.gptq import DAMPING, inverse_factor, rounded
from specexport.exporter.weights.recipe import WeightRecipe
from torch import Tensor

OUTPUTS, INPUTS = 12, 160  # more than two of the groups of columns that updates are gathered in


def correlated(rows: int = 400) -> Tensor:
    """Inputs [R, K] that a third as many numbers explain nearly, as hidden states are."""
    torch.manual_seed(0)
    return torch.randn(rows, INPUTS // 3) @ torch.randn(INPUTS // 3, INPUTS) + 0.1 * torch.randn(rows, INPUTS)


def weight() -> Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1))


def error(values: Float32, scales: Float32, inputs: Tensor) -> float:
    off = torch.from_numpy(restore(values, scales)) - weight()
    return float((inputs @ off.T).square().sum())


def slowly(exact: Tensor, gram: Tensor, scales: Float32, limit: int) -> Float32:
    """Section 3 of the paper, equations 2 and 3, with the inverse made anew for every column."""
    left = exact.double()
    damped = gram.double() + torch.eye(INPUTS) * DAMPING * gram.diagonal().double().mean()
    step = torch.from_numpy(scales).double()
    found = np.empty(exact.shape, np.int8)
    for column in range(INPUTS):
        inverse = torch.linalg.inv(damped[column:, column:])
        nearest = (left[:, column] / step).round().clamp(-limit, limit)
        found[:, column] = nearest
        lost = (left[:, column] - nearest * step) / inverse[0, 0]
        left[:, column:] -= lost[:, None] * inverse[0]
    return found


@pytest.mark.parametrize("limit", [7, 64, 127])
def test_values_are_the_paper_s(limit: int) -> None:
    inputs = correlated()
    gram = inputs.T @ inputs
    factor = inverse_factor(gram)
    assert factor is not None
    values, scales = rounded(weight(), factor, WeightRecipe("int8", limit=limit))
    nearest, expected_scales = int8_per_output(weight().numpy(), limit)
    assert np.array_equal(scales, expected_scales)
    expected = slowly(weight(), gram, scales, limit)
    # fp32 against fp64: a value at the edge of a step may fall to the other side, and takes those behind it along
    assert (values == expected).mean() > 0.95
    assert (values == nearest).mean() < 0.9
    assert error(values, scales, inputs) < 1.01 * error(expected, scales, inputs)
    assert abs(values).max() <= limit


@pytest.mark.parametrize(
    ("recipe", "nearest"),
    [
        (WeightRecipe("int8", limit=127), int8_per_output(weight().numpy(), 127)),
        (WeightRecipe("int8", limit=64), int8_per_output(weight().numpy(), 64)),
        (WeightRecipe("int4", block=32, signed=True), int4_blocks(weight().numpy(), 32, signed=True)),
        (WeightRecipe("int4", block=16), int4_blocks(weight().numpy(), 16)),
        (WeightRecipe("int4"), int4_blocks(weight().numpy(), 0)),
    ],
    ids=["127", "64", "blocks", "unsigned", "whole"],
)
def test_outputs_change_less_than_by_rounding_to_nearest(
    recipe: WeightRecipe, nearest: tuple[Float32, Float32]
) -> None:
    inputs = correlated()
    factor = inverse_factor(inputs[::2].T @ inputs[::2])
    assert factor is not None
    values, scales = rounded(weight(), factor, recipe)
    assert values.shape == nearest[0].shape
    assert scales.shape == nearest[1].shape
    assert (scales > 0).all() or recipe.signed
    assert error(values, scales, inputs[1::2]) < 0.4 * error(*nearest, inputs[1::2])


def test_without_correlation_it_is_rounding_to_nearest() -> None:
    factor = inverse_factor(torch.diag(torch.linspace(1, 9, INPUTS)))
    assert factor is not None
    values, scales = rounded(weight(), factor, WeightRecipe("int8", limit=127))
    nearest = int8_per_output(weight().numpy(), 127)
    assert np.array_equal(values, nearest[0])
    assert np.array_equal(scales, nearest[1])


def test_scales_are_held_before_values_are_rounded_to_them() -> None:
    inputs = correlated()
    factor = inverse_factor(inputs.T @ inputs)
    assert factor is not None

    def coarse(scales: Float32) -> Float32:
        return np.exp2(np.ceil(np.log2(scales))).astype(np.float32)

    values, scales = rounded(weight(), factor, WeightRecipe("int8", limit=127), coarse)
    assert np.array_equal(scales, coarse(scales))
    assert error(values, scales, inputs) < 0.4 * error(
        np.rint(weight().numpy() / scales[:, None]).astype(np.int8), scales, inputs
    )
