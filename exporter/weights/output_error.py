"""Errors of quantized layers on sampled rows of their inputs, and what is chosen by them.

Relative error of a quantized layer's outputs, on sampled rows of its inputs.

Static activation scales: one per tensor, chosen on sampled rows.

How quantizing the LM head alone changes a model's output distributions, in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .collect_activations import InputGroup
from .fake_quant import INT8_HIGH, rounded_activations
from .formats import LARGEST
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


# The number of most likely tokens compared per row, which have nearly all of its probability, and of rows compared.
TOP = 64
ROWS = 32


def lm_head_divergence(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Mean KL divergence of softmax(rows @ matrix.T) from the same with a quantized matrix.

    rows: [R, K] fp32, inputs of the LM head. matrix: [V, K]. Only over each row's TOP most likely tokens, so that the
    whole matrix of a large vocabulary need not be quantized for it.
    """
    rows = rows[:: max(1, rows.shape[0] // ROWS)]
    exact, tokens = (rows @ matrix.float().T).topk(min(TOP, matrix.shape[0]))  # [R, TOP]
    used, places = torch.unique(tokens, return_inverse=True)
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix[used].float().numpy())))
    logits = torch.log_softmax((rows @ restored.T).gather(1, places), -1)
    exact = torch.log_softmax(exact, -1)
    return float((exact.exp() * (exact - logits)).sum(-1).mean())
