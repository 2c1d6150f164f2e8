"""The fake-quantized model in torch: the reference for proving quantized graphs and for measuring their quality."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .experts import expert_layers
from .layers import LinearLayer, hooked, linear_layers
from .recipe import LARGEST, Recipe, WeightRecipe

INT8_LOW, INT8_HIGH = -128, 127
# Outputs of a layer on which its error is judged.
SAMPLED_OUTPUTS = 256


def rounded_activations(x: Tensor, recipe: WeightRecipe) -> Tensor:
    """x `[..., K]` rounded as an engine rounds it, in x's dtype. For int4, float and weight-only recipes: x itself.

    Without a static scale each row gets its own: max|x| / 127 (448 in fp8), or 1 for a row of zeros. With one, values
    beyond the range are clipped to [-128, 127], like QuantizeLinear saturates.
    """
    if recipe.format not in ("int8", "fp8") or recipe.weight_only:
        return x
    wide = x.float()
    limit = INT8_HIGH if recipe.format == "int8" else LARGEST
    if recipe.input_scale is None:
        scale = wide.abs().amax(-1, keepdim=True) / limit
        scale = torch.where(scale >= torch.finfo(torch.float32).tiny, scale, torch.ones_like(scale))
    else:
        scale = torch.tensor(recipe.input_scale)
    if recipe.format == "int8":
        values = (wide / scale).round().clamp(INT8_LOW, INT8_HIGH)
    else:
        values = (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()
    return (values * scale).to(x.dtype)


@contextmanager
def fake_quantized(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """A context in which `model` has its weights quantized and dequantized by `recipe`, and rounds activations.

    Embedding tables are quantized and dequantized too, but what they output is not rounded. Weights are fp32 inside the
    context, so a model in half precision needs an fp32 context as well. On exit every weight is restored bit for bit.
    """
    parameters = dict(model.named_parameters())
    layers = linear_layers(model)
    transposed = {layer.weight for layer in layers if layer.transposed}
    kept: dict[str, Tensor] = {}
    every: list[LinearLayer] = [*layers, *expert_layers(model)]
    rounding = (
        layer.module.register_forward_pre_hook(_rounding(recipe.weights[layer.weight]))
        for layer in every
        if layer.weight in recipe.weights and recipe.weights[layer.weight].format in ("int8", "fp8")
    )
    try:
        for name, of_weight in recipe.weights.items():
            if of_weight.format != "float":
                parameter = parameters[name]
                kept[name] = parameter.data
                parameter.data = restored(parameter.data, of_weight, name in transposed)
        with hooked(rounding):
            yield
    finally:
        for name, data in kept.items():
            parameters[name].data = data


def restored(weight: Tensor, recipe: WeightRecipe, transposed: bool = False) -> Tensor:
    """The weight, quantized and dequantized, in fp32.

    weight: [N, K], or [K, N] if transposed, or a stack [E, N, K], of any float dtype.
    """
    if weight.ndim == 3:
        return restored(weight.flatten(0, 1), recipe).reshape(weight.shape)
    matrix = weight.T if transposed else weight
    back = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix.float().numpy())))
    return back.T.contiguous() if transposed else back


def output_error(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Relative squared error of rows @ matrix.T when both are quantized. rows: [R, K] fp32. matrix: [N, K] fp32."""
    exact = rows @ matrix.T
    off = rounded_activations(rows, recipe) @ restored(matrix, recipe).T - exact
    size = float(exact.square().sum())
    return float(off.square().sum()) / size if size > 0 else 0.0


def sampled_outputs(layer: LinearLayer) -> Tensor:
    """A copy [N', K] fp32 of rows of the layer's matrix, spread evenly over its outputs."""
    step = max(1, -(-layer.matrix.shape[0] // SAMPLED_OUTPUTS))
    return layer.matrix[::step].float().clone()


def _rounding(recipe: WeightRecipe) -> Any:
    return lambda module, args: (rounded_activations(args[0], recipe), *args[1:])
