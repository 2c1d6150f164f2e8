"""Relative error of a quantized layer's outputs, on sampled rows of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .activations import rounded_activations
from .collect_activations import InputGroup
from .layers import LinearLayer
from .recipe import Format, WeightRecipe

SAMPLED_OUTPUTS = 256
# Layers are kept in a higher format if their relative squared error is this many times the model's median and above
# the minimum in FLOORS: if all errors are small, an outlier does not matter.
OUTLIER = 8.0
FLOORS: dict[Format, float] = {"int8": 1e-2, "fp8": 1e-2, "int4": 2e-2}
HIGHER: dict[Format, Format] = {"int4": "int8", "int8": "float", "fp8": "float"}


def stands_out(error: float, typical: float, format: Format) -> bool:
    """Whether layers with this error in `format` are kept in a higher one. typical: the median of the model's."""
    return error > max(OUTLIER * typical, FLOORS[format])


def output_error(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Relative squared error of rows @ matrix.T when both are quantized. rows: [R, K] fp32. matrix: [N, K] fp32."""
    off, size = squared_error(rows, matrix, recipe)
    return off / size if size > 0 else 0.0


def group_error(group: InputGroup, recipes: Sequence[WeightRecipe]) -> float:
    """The largest relative squared error of the group's layers."""
    return max(
        output_error(group.rows, sampled_outputs(layer), recipe)
        for layer, recipe in zip(group.layers, recipes, strict=True)
    )


def squared_error(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> tuple[float, float]:
    """The two parts of `output_error`: (squared error, squared norm of the exact outputs)."""
    exact = rows @ matrix.T
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix.numpy())))
    off = rounded_activations(rows, recipe) @ restored.T - exact
    return float(off.square().sum()), float(exact.square().sum())


def sampled_outputs(layer: LinearLayer) -> Tensor:
    """A copy [N', K] fp32 of rows of the layer's matrix, spread evenly over its outputs."""
    return spread_rows(layer.matrix)


def spread_rows(matrix: Tensor) -> Tensor:
    """A copy [N', K] fp32 of some of a matrix's rows, spread evenly."""
    step = max(1, -(-matrix.shape[0] // SAMPLED_OUTPUTS))
    return matrix[::step].float().clone()


def rescaled(recipe: WeightRecipe, scales: Tensor) -> WeightRecipe:
    """The recipe for inputs divided by `scales` [K]."""
    if recipe.importance is None:
        return recipe
    return replace(recipe, importance=recipe.importance / scales.square().numpy())
