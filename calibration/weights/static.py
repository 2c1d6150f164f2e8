"""Static activation scales: one per tensor, chosen on sampled rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .activations import INT8_HIGH, rounded_activations
from .collect_activations import InputGroup
from .floats import LARGEST
from .output_error import output_error, sampled_outputs
from .recipe import WeightRecipe

# Candidate scales, relative to the one that covers the largest observed magnitude.
RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
# Error that a static scale may have, relative to scales per row.
STATIC_ERROR_RATIO = 1.05


def input_scale(group: InputGroup, recipe: WeightRecipe, rows: Tensor | None = None) -> float:
    """The scale of a small grid with the least squared error of the inputs, weighted by the weights' columns.

    rows: [R, K] to judge on, by default all sampled rows. The largest magnitude is that of all tokens that were read.
    """
    rows = group.rows if rows is None else rows
    columns = torch.stack([layer.matrix.float().square().sum(0) for layer in group.layers]).sum(0)
    whole = group.tensor_largest / (INT8_HIGH if recipe.format == "int8" else LARGEST)
    if not whole > torch.finfo(torch.float32).tiny:
        return 1.0
    best, least = whole, float("inf")
    for ratio in RATIOS:
        off = rounded_activations(rows, replace(recipe, input_scale=whole * ratio)) - rows
        error = float((off.square() * columns).sum())
        if error < least:
            best, least = whole * ratio, error
    return best


def static_is_enough(group: InputGroup, recipe: WeightRecipe) -> float | None:
    """A static scale chosen on half of the sampled rows, or None if scales per row are better on the other half."""
    chosen, held_back = group.rows[::2], group.rows[1::2]
    static = replace(recipe, input_scale=input_scale(group, recipe, chosen))
    for layer in group.layers:
        matrix = sampled_outputs(layer)
        if output_error(held_back, matrix, static) > STATIC_ERROR_RATIO * output_error(held_back, matrix, recipe):
            return None
    return static.input_scale
