"""A static scale clips what is rare and light, keeps what counts, and is told from a scale a row."""

from __future__ import annotations

import torch
from specexport.exporter.weights.collect_activations import InputGroup
from specexport.exporter.weights.layers import LinearLayer
from specexport.exporter.weights.output_error import input_scale, static_is_enough
from specexport.exporter.weights.recipe import WeightRecipe
from torch import Tensor, nn

RECIPE = WeightRecipe("int8", limit=127)


def group(rows: Tensor, weight: Tensor | None = None) -> InputGroup:
    module = nn.Linear(rows.shape[1], 8, bias=False)
    torch.manual_seed(0)
    module.weight.data = torch.randn(8, rows.shape[1]) if weight is None else weight
    largest, square = rows.abs().amax(0), rows.square().mean(0)
    layer = LinearLayer("layer", module, "layer.weight", False)
    return InputGroup((layer,), largest, rows.abs().mean(0), square, rows, largest, 1)


def normal(rows: int = 400, inputs: int = 64) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0))


def test_the_range_of_even_inputs_is_kept() -> None:
    rows = normal().sign() * 3
    assert input_scale(group(rows), RECIPE) == 3 / 127
    assert abs(input_scale(group(rows), WeightRecipe("fp8")) - 3 / 448) < 1e-9


def test_a_lone_outlier_is_clipped_only_where_its_column_counts_little() -> None:
    rows = normal()
    rows[0, 5] = 60
    light, heavy = torch.ones(8, 64), torch.ones(8, 64)
    light[:, 5], heavy[:, 5] = 0.01, 100
    assert input_scale(group(rows, light), RECIPE) < 0.3 * 60 / 127
    assert input_scale(group(rows, heavy), RECIPE) == 60 / 127


def test_no_signal_gives_one() -> None:
    assert input_scale(group(torch.zeros(4, 8)), RECIPE) == 1


def test_rows_of_one_size_need_no_scale_of_their_own_and_others_do() -> None:
    even = torch.nn.functional.normalize(normal()) * 5
    scale = static_is_enough(group(even), RECIPE)
    assert scale is None or scale > 0
    constant = normal().sign()
    assert static_is_enough(group(constant), RECIPE) == 1 / 127
    uneven = normal()
    uneven[1::2] *= 1e-3  # those held back
    assert static_is_enough(group(uneven), RECIPE) is None
