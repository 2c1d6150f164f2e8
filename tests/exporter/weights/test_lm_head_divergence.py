"""The divergence of a rounded head, against the whole distribution."""

from __future__ import annotations

import torch
from specexport.exporter.weights.output_error import lm_head_divergence, output_error
from specexport.exporter.weights.recipe import WeightRecipe

RANDOM = torch.Generator().manual_seed(0)
MATRIX = torch.randn(500, 32, generator=RANDOM)
ROWS = torch.randn(64, 32, generator=RANDOM)


def whole(recipe: WeightRecipe) -> float:
    exact = (ROWS @ MATRIX.T).log_softmax(-1)
    rounded = (ROWS @ torch.from_numpy(recipe.restore(MATRIX.numpy())).T).log_softmax(-1)
    return float((exact.exp() * (exact - rounded)).sum(-1).mean())


def test_the_likeliest_tokens_tell_nearly_all() -> None:
    for recipe in (WeightRecipe("int4", block=16), WeightRecipe("int4"), WeightRecipe("int8")):
        assert 0.7 * whole(recipe) < lm_head_divergence(ROWS, MATRIX, recipe) < 1.4 * whole(recipe)


def test_the_error_of_outputs_is_relative_and_counts_both_roundings() -> None:
    int8, int4 = WeightRecipe("int8"), WeightRecipe("int4", block=16)
    exact = ROWS @ MATRIX.T
    off = ROWS @ torch.from_numpy(int4.restore(MATRIX.numpy())).T - exact
    assert abs(output_error(ROWS, MATRIX, int4) - float(off.square().sum() / exact.square().sum())) < 1e-7
    assert output_error(ROWS * 64, MATRIX, int4) == output_error(ROWS, MATRIX, int4)
    assert output_error(ROWS, MATRIX, WeightRecipe("int8", input_scale=1.0)) > 10 * output_error(ROWS, MATRIX, int8)
    assert output_error(ROWS * 0, MATRIX, int8) == 0
