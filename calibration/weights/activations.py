"""Activations rounded in torch as the compiled graph rounds them."""

from __future__ import annotations

import torch
from torch import Tensor

from .floats import LARGEST
from .recipe import WeightRecipe

INT8_LOW, INT8_HIGH = -128, 127


def rounded_activations(x: Tensor, recipe: WeightRecipe) -> Tensor:
    """x `[..., K]` quantized and dequantized by `recipe`, in x's dtype. For int4, float and weight-only recipes: x
    itself.

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
