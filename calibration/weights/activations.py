"""Activations rounded as the compiled graph rounds them, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .floats import LARGEST
from .recipe import WeightRecipe

INT8_LOW, INT8_HIGH = -128, 127


def rounded_activations(x: Tensor, recipe: WeightRecipe) -> Tensor:
    """x: [..., K], rounded and back in fp32 as `recipe` says, given back in x's dtype; int4 and float weights leave it as it is.

    A scale a row: max|x| / 127 (448 in fp8), 1 for a row of zeros. A static scale: what is beyond the range is clipped
    to [-128, 127], as QuantizeLinear saturates.
    """
    if recipe.format not in ("int8", "fp8"):
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
