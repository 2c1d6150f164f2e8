"""GPTQ against its definition, worked out slowly, and against rounding to nearest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.gptq import DAMPING, choose_integers, inverse_factor, rounded
from specexport.exporter.weights.layers import linear_layers
from specexport.exporter.weights.recipe import Float32, Recipe, WeightRecipe, cast_scales, restore
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8", limit=7)  # coarse, so that the weights' rounding is what one sees
OUTPUTS, INPUTS = 12, 160  # more than two of the groups of columns that updates are gathered in


def correlated(rows: int = 400) -> Tensor:
    """Inputs [R, K] that a third as many numbers explain nearly, as hidden states are."""
    torch.manual_seed(0)
    return torch.randn(rows, INPUTS // 3) @ torch.randn(INPUTS // 3, INPUTS) + 0.1 * torch.randn(rows, INPUTS)


def weight() -> Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1))


def error(values: Float32, scales: Float32, inputs: Tensor) -> float:
    off = torch.from_numpy(restore(values, scales)) - weight()
    return float((inputs @ off.T).square().sum())


def slowly(exact: Tensor, gram: Tensor, scales: Float32, limit: int) -> Float32:
    """Section 3 of the paper, equations 2 and 3, with the inverse made anew for every column."""
    left = exact.double()
    damped = gram.double() + torch.eye(INPUTS) * DAMPING * gram.diagonal().double().mean()
    step = torch.from_numpy(scales).double()
    found = np.empty(exact.shape, np.int8)
    for column in range(INPUTS):
        inverse = torch.linalg.inv(damped[column:, column:])
        nearest = (left[:, column] / step).round().clamp(-limit, limit)
        found[:, column] = nearest
        lost = (left[:, column] - nearest * step) / inverse[0, 0]
        left[:, column:] -= lost[:, None] * inverse[0]
    return found


@pytest.mark.parametrize("limit", [7, 64, 127])
def test_values_are_the_paper_s(limit: int) -> None:
    inputs = correlated()
    factor = inverse_factor(inputs)
    assert factor is not None
    recipe = WeightRecipe("int8", limit=limit)
    values, scales = rounded(weight(), factor, recipe)
    nearest, expected_scales = recipe.quantize(weight().numpy())
    assert np.array_equal(scales, expected_scales)
    expected = slowly(weight(), inputs.T @ inputs, scales, limit)
    # fp32 against fp64: a value at the edge of a step may fall to the other side, and takes those behind it along
    assert (values == expected).mean() > 0.95
    assert (values == nearest).mean() < 0.9
    assert error(values, scales, inputs) < 1.01 * error(expected, scales, inputs)
    assert abs(values).max() <= limit


@pytest.mark.parametrize(
    "recipe",
    [
        WeightRecipe("int8", limit=127),
        WeightRecipe("int4", block=32, signed=True),
        WeightRecipe("int4", block=16, scale_type="bf16"),
        WeightRecipe("int4"),
    ],
    ids=["int8", "blocks", "half", "whole"],
)
def test_outputs_change_less_than_by_rounding_to_nearest(recipe: WeightRecipe) -> None:
    inputs = correlated()
    factor = inverse_factor(inputs[::2])
    assert factor is not None
    values, scales = rounded(weight(), factor, recipe)
    nearest = recipe.quantize(weight().numpy())
    assert values.shape == nearest[0].shape
    assert scales.shape == nearest[1].shape
    assert (scales > 0).all() or recipe.signed
    assert error(values, scales, inputs[1::2]) < 0.4 * error(*nearest, inputs[1::2])
    if recipe.scale_type != "fp32":
        assert np.array_equal(scales, cast_scales(scales, recipe.scale_type))


def test_without_correlation_it_is_rounding_to_nearest() -> None:
    factor = inverse_factor(torch.diag(torch.linspace(1, 3, INPUTS)))
    assert factor is not None
    recipe = WeightRecipe("int8", limit=127)
    for found, nearest in zip(rounded(weight(), factor, recipe), recipe.quantize(weight().numpy()), strict=True):
        assert np.array_equal(found, nearest)


def texts() -> list[Tensor]:
    """Of several lengths."""
    numbers = torch.Generator().manual_seed(2)
    return [torch.randint(2, 96, (1, length), generator=numbers) for length in (40, 24, 33, 17, 40, 40, 38)]


def inputs_of(model: PreTrainedModel, path: str) -> Tensor:
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
    found = choose_integers(model, texts(), recipes).weights
    assert set(found) == set(recipes)
    rows = inputs_of(model, path)
    factor = inverse_factor(rows)
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

    # fitted to these tokens, less damping is better
    found = choose_integers(model, texts(), recipes, damping=0.01).weights
    assert off(found) < 0.7 * off(recipes)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    "laid", [lambda rows: rows.flatten(0, 1), lambda rows: rows[:, None]], ids=["in one list", "with a head"]
)
def test_layers_that_get_their_rows_in_another_shape(make: Make, laid: Callable[[Tensor], Tensor]) -> None:
    """As experts that all tokens share do, and the second product of latent attention: the same integers."""
    model = make("llama")
    recipes = {layer.weight: INT8 for layer in linear_layers(model)}
    expected = choose_integers(model, texts(), recipes).weights
    mlp = model.get_submodule("model.layers.1.mlp")
    forward = mlp.forward
    mlp.forward = lambda rows: forward(laid(rows)).reshape(rows.shape)
    found = choose_integers(model, texts(), recipes).weights
    assert set(found) == set(expected)
    for name, recipe in found.items():
        ours, theirs = recipe.stored, expected[name].stored
        assert ours is not None
        assert theirs is not None
        assert (ours[0] == theirs[0]).mean() > 0.98, name


def test_a_layer_that_gets_some_of_the_rows_is_left_as_it_is(make: Make) -> None:
    model = make("llama")
    recipes = {layer.weight: INT8 for layer in linear_layers(model)}
    mlp = model.get_submodule("model.layers.1.mlp")
    forward = mlp.forward
    mlp.forward = lambda rows: torch.cat([forward(rows[:, :-1]), rows[:, -1:]], 1)
    found = choose_integers(model, texts(), recipes).weights
    assert set(recipes) - set(found) == {f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
