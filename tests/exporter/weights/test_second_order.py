"""Integers of a whole model's layers, chosen in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.gptq import choose_integers, inverse_factor, rounded
from specexport.exporter.weights.layers import linear_layers
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8", limit=7)  # coarse, so that the weights' rounding is what one sees


def texts() -> list[Tensor]:
    """Of several lengths."""
    numbers = torch.Generator().manual_seed(2)
    return [torch.randint(2, 96, (1, length), generator=numbers) for length in (40, 24, 33, 17, 40, 40, 38)]


def inputs(model: PreTrainedModel, path: str) -> Tensor:
    seen: list[Tensor] = []
    hook = model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.append(args[0][0]))
    with torch.no_grad():
        for text in texts():
            model(input_ids=text)
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("path", ["model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj", "lm_head"])
def test_as_if_each_text_had_been_read_alone(make: Make, path: str) -> None:
    """So what is padded changes nothing, and layers of one input share its Gram matrix and no other."""
    model = make("llama")
    recipes = {layer.weight: INT8 for layer in linear_layers(model)}
    found = choose_integers(model, texts(), recipes, recipes)
    assert set(found) == set(recipes)
    rows = inputs(model, path)
    factor = inverse_factor(rows.T @ rows)
    assert factor is not None
    expected, scales = rounded(model.get_submodule(path).weight.data, factor, INT8)
    values, own_scales = found[f"{path}.weight"].quantize(model.get_submodule(path).weight.data.numpy())
    assert np.array_equal(own_scales, scales)
    assert (values == expected).mean() > 0.98  # sums in another order


def test_the_model_is_nearer_and_unchanged(make: Make, batches: list[Tensor]) -> None:
    model = make("gpt2", tie_word_embeddings=False)  # Conv1D: [K, N]
    names = [layer.weight for layer in linear_layers(model)]
    recipes = dict.fromkeys(names, INT8)
    before = [parameter.clone() for parameter in model.parameters()]

    def off(weights: dict[str, WeightRecipe]) -> float:
        with torch.no_grad():
            exact = [model(input_ids=batch).logits for batch in batches]
            with fake_quantized(model, Recipe(weights)):
                return sum(
                    float((model(input_ids=batch).logits - known).square().sum())
                    for batch, known in zip(batches, exact, strict=True)
                )

    found = choose_integers(model, texts(), recipes, names, damping=0.01)  # fitted to these tokens, less is better
    assert off(found) < 0.7 * off(recipes)
    assert all(map(torch.equal, before, model.parameters()))
