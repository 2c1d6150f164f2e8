"""The fake-quantized model computes with restored weights and rounded inputs, and gives everything back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from specexport.exporter.weights.fake_quant import fake_quantized, rounded_activations
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8, INT4 = WeightRecipe("int8"), WeightRecipe("int4", block=16)
UP = "model.layers.0.mlp.up_proj"


X = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)) * torch.exp2(torch.arange(5) * 4.0)[:, None]


def io(model: PreTrainedModel, path: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
    kept: list[tuple[Tensor, Tensor]] = []
    # always first: in front of fake_quantized's own hook
    before: list[Tensor] = []
    module = model.get_submodule(path)
    hooks = [
        module.register_forward_pre_hook(lambda _, args: before.append(args[0]), prepend=True),
        module.register_forward_hook(lambda _, args, output: kept.append((before[-1], output))),
    ]
    with torch.no_grad():
        model(input_ids=tokens)
    for hook in hooks:
        hook.remove()
    return kept[0]


@pytest.mark.parametrize(
    "recipe", [INT8, INT4, WeightRecipe("int8", limit=127, input_scale=0.02), WeightRecipe("fp8", input_scale=0.01)]
)
def test_a_layer_of_the_twin(make: Make, batches: list[Tensor], recipe: WeightRecipe) -> None:
    model = make("llama")
    weight = model.get_submodule(UP).weight.detach().clone()
    with fake_quantized(model, Recipe({f"{UP}.weight": recipe})):
        x, y = io(model, UP, batches[0])
    expected = rounded_activations(x, recipe) @ torch.from_numpy(recipe.restore(weight.numpy())).T
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert (y - x @ weight.T).abs().max() > 1e-3


def test_a_tied_table_is_restored_in_both_places_and_rounds_the_head_alone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama", tie_word_embeddings=True)
    table = model.get_input_embeddings().weight.detach().clone()
    with fake_quantized(model, Recipe({"model.embed_tokens.weight": INT8})):
        restored = torch.from_numpy(INT8.restore(table.numpy()))
        assert torch.equal(model.get_input_embeddings()(batches[0]), restored[batches[0]])
        x, y = io(model, "lm_head", batches[0])
        torch.testing.assert_close(y, rounded_activations(x, INT8) @ restored.T, rtol=1e-5, atol=1e-4)


def test_everything_is_given_back_even_behind_an_error(make: Make) -> None:
    model = make("llama")
    before = [(parameter.data_ptr(), parameter.clone()) for parameter in model.parameters()]
    recipe = Recipe({f"{UP}.weight": INT8, "model.embed_tokens.weight": INT4, "lm_head.weight": WeightRecipe("float")})
    with pytest.raises(RuntimeError), fake_quantized(model, recipe):
        model.get_submodule(UP)(torch.zeros(1, 3))  # of the wrong shape
    with pytest.raises(KeyError), fake_quantized(model, Recipe({f"{UP}.weight": INT8, "no.such.weight": INT8})):
        pass
    after = [(parameter.data_ptr(), parameter) for parameter in model.parameters()]
    assert all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(before, after, strict=True))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_scale_a_row_as_uint8_with_zero_point_128() -> None:
    x = X.numpy()
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    values = np.clip(np.rint(x / scale) + 128, 0, 255).astype(np.uint8)
    expected = (values.astype(np.int32) - 128).astype(np.float32) * scale
    assert np.array_equal(rounded_activations(X, WeightRecipe("int8")).numpy(), expected)


def test_a_static_scale_rounds_half_to_even_and_saturates() -> None:
    x = torch.tensor([0.25, 0.75, -0.25, 63.4, 70.0, -64.0, -99.0])
    found = rounded_activations(x, WeightRecipe("int8", input_scale=0.5))
    assert found.tolist() == [0, 1, 0, 63.5, 63.5, -64, -64]


def test_fp8_saturates_and_keeps_three_bits() -> None:
    x = torch.tensor([1.0, 1.05, 500.0, -1e9])
    assert rounded_activations(x, WeightRecipe("fp8", input_scale=1.0)).tolist() == [1, 1, 448, -448]
    by_row = rounded_activations(X, WeightRecipe("fp8"))
    assert torch.equal(by_row.abs().amax(1), X.abs().amax(1))
    assert not torch.equal(by_row, X)


def test_weight_only_formats_leave_them_and_zeros_stay_zeros() -> None:
    assert rounded_activations(X, WeightRecipe("int4", block=32)) is X
    assert rounded_activations(X, WeightRecipe("float")) is X
    assert not rounded_activations(torch.zeros(2, 4), WeightRecipe("int8")).any()
