"""What a layer's rounding does to the output, estimated by one pass back, against what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.layers import linear_layers
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.sensitivity import divergences, lm_head_divergence
from specexport.exporter.weights.turning import Turn
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8", limit=127)
DOWN = "model.layers.0.mlp.down_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def texts() -> list[Tensor]:
    numbers = torch.Generator().manual_seed(2)
    return list(torch.randint(2, 96, (24, 1, 40), generator=numbers))


def stored(matrix: Tensor, limit: int = 63) -> WeightRecipe:
    """Called int4, in finer steps: what is estimated holds for small changes."""
    weight = matrix.detach().float().contiguous().numpy()
    return WeightRecipe("int4", stored=WeightRecipe("int8", limit=limit).quantize(weight))


def calm(model: PreTrainedModel) -> PreTrainedModel:
    """With weights so small that nothing saturates."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 0.4
    return model


def both(model: PreTrainedModel) -> dict[str, Any]:
    return {layer.weight: {"int4": stored(layer.matrix), "int8": INT8} for layer in linear_layers(model)}


def moved(model: PreTrainedModel, weights: dict[str, WeightRecipe], batches: list[Tensor]) -> float:
    """What is estimated: the mean divergence over all tokens."""
    with torch.no_grad():
        exact = torch.cat([model(input_ids=batch).logits[0].log_softmax(-1) for batch in batches])
        with fake_quantized(model, Recipe(weights)):
            found = torch.cat([model(input_ids=batch).logits[0].log_softmax(-1) for batch in batches])
    return float((exact.exp() * (exact - found)).sum(-1).mean())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_is_near_the_true_divergence_of_each_layer(make: Make, family: str) -> None:
    """But for scatter, and for rows that are not independent. A missing half would be 2 everywhere."""
    model = calm(make(family, tie_word_embeddings=False))
    candidates = both(model)
    found = divergences(model, texts(), candidates, {})
    ratios = []
    for layer in linear_layers(model):
        for form, recipe in candidates[layer.weight].items():
            true = moved(model, {layer.weight: recipe}, texts())
            ratios.append(found[layer.weight][form] / true)
    assert min(ratios) > 0.25
    assert max(ratios) < 3
    assert 0.75 < torch.tensor(ratios).log().mean().exp() < 1.33


def test_a_turn_is_of_int8_only_and_changes_nothing_else(make: Make) -> None:
    model = make("llama")
    turn = Turn(16)
    weight = model.get_parameter(DOWN).detach()
    plain, turned = (divergences(model, texts(), both(model), turns) for turns in ({}, {DOWN: turn}))
    assert plain[QUERY] == turned[QUERY]
    assert plain[DOWN]["int4"] == turned[DOWN]["int4"]
    assert plain[DOWN]["int8"] != turned[DOWN]["int8"]
    with torch.no_grad():
        layer = model.get_submodule(DOWN.removesuffix(".weight"))
        before = weight.clone()
        layer.register_forward_pre_hook(turn)
        model.get_parameter(DOWN).copy_(turn.apply(before))
    assert divergences(model, texts(), both(model), {})[DOWN]["int8"] == pytest.approx(turned[DOWN]["int8"], rel=1e-2)


def test_the_model_is_as_it_was_and_the_estimate_repeats(make: Make) -> None:
    model = make("llama")
    model.get_parameter(QUERY).requires_grad_(False)
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    with torch.no_grad():
        before = model(input_ids=texts()[0]).logits
        one, two = (divergences(model, texts(), both(model), {}) for _ in range(2))
        assert torch.equal(model(input_ids=texts()[0]).logits, before)
    assert one == two
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_experts_and_layers_that_no_text_reaches(make: Make) -> None:
    model = make("mixtral")
    model.idle = torch.nn.Linear(32, 32)
    found = divergences(model, texts()[:2], both(model), {})
    assert "idle.weight" not in found
    assert QUERY in found


def test_the_likeliest_tokens_of_the_head_tell_nearly_all() -> None:
    numbers = torch.Generator().manual_seed(0)
    matrix, rows = torch.randn(500, 32, generator=numbers), torch.randn(64, 32, generator=numbers)
    exact = (rows @ matrix.T).log_softmax(-1)
    for recipe in (WeightRecipe("int4", block=16), WeightRecipe("int4"), WeightRecipe("int8")):
        rounded = (rows @ torch.from_numpy(recipe.restore(matrix.numpy())).T).log_softmax(-1)
        whole = float((exact.exp() * (exact - rounded)).sum(-1).mean())
        assert 0.7 * whole < lm_head_divergence(rows, matrix, recipe) < 1.4 * whole
