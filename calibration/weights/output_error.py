"""Relative error of a quantized layer's outputs, on sampled rows of its inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .activations import rounded_activations
from .layers import LinearLayer
from .recipe import WeightRecipe

SAMPLED_OUTPUTS = 256


def output_error(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Relative squared error of rows @ matrix.T when both are quantized. rows: [R, K] fp32. matrix: [N, K] fp32."""
    exact = rows @ matrix.T
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix.numpy())))
    off = rounded_activations(rows, recipe) @ restored.T - exact
    size = float(exact.square().sum())
    return float(off.square().sum()) / size if size > 0 else 0.0


def sampled_outputs(layer: LinearLayer) -> Tensor:
    """A copy [N', K] fp32 of rows of the layer's matrix, spread evenly over its outputs."""
    matrix = layer.matrix
    step = max(1, -(-matrix.shape[0] // SAMPLED_OUTPUTS))
    return matrix[::step].float().clone()


def rescaled(recipe: WeightRecipe, scales: Tensor) -> WeightRecipe:
    """The recipe for inputs divided by `scales` [K]."""
    if recipe.importance is None:
        return recipe
    return replace(recipe, importance=recipe.importance / scales.square().numpy())
