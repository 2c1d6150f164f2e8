"""The quantized model in torch: the reference that a quantized graph is proved against, and what its quality is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .activations import rounded_activations
from .layers import linear_layers
from .recipe import Recipe, WeightRecipe


@contextmanager
def quantized_twin(model: nn.Module, recipe: Recipe) -> Iterator[None]:
    """While the context lasts, `model` has its recipe's weights, quantized and back, and rounds the activations in front of them.

    Tables of embeddings are restored too, and read without rounding. The weights are fp32 meanwhile, whatever they
    were, and a model in half precision needs a context in which it computes in fp32. Everything is given back behind
    it, bit for bit.
    """
    parameters = dict(model.named_parameters())
    layers = linear_layers(model)
    transposed = {layer.weight for layer in layers if layer.transposed}
    kept: dict[str, Tensor] = {}
    hooks = []
    try:
        for name, of_weight in recipe.weights.items():
            if of_weight.format != "float":
                parameter = parameters[name]
                kept[name] = parameter.data
                parameter.data = restored(parameter.data, of_weight, name in transposed)
        for layer in layers:
            of_layer = recipe.weights.get(layer.weight)
            if of_layer is not None and of_layer.format in ("int8", "fp8"):
                hooks.append(layer.module.register_forward_pre_hook(_rounding(of_layer)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name, data in kept.items():
            parameters[name].data = data


def restored(weight: Tensor, recipe: WeightRecipe, transposed: bool = False) -> Tensor:
    """weight: [N, K], or [K, N] where it is transposed, of any float dtype. The same in fp32, quantized and back."""
    matrix = weight.T if transposed else weight
    back = torch.from_numpy(recipe.restore(matrix.float().contiguous().numpy()))
    return back.T.contiguous() if transposed else back


def _rounding(recipe: WeightRecipe) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return rounded_activations(args[0], recipe), *args[1:]

    return hook
