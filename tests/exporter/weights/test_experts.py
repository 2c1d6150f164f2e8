"""Stacks of experts as modules, and how they are rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from specexport.exporter.weights import gptq
from specexport.exporter.weights.choose import RecipeOptions, choose
from specexport.exporter.weights.experts import expert_layers, stack_experts
from specexport.exporter.weights.fake_quant import fake_quantized, rounded_activations
from specexport.exporter.weights.gptq import choose_integers, rounded
from specexport.exporter.weights.mixing import bytes_of
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import Tensor, nn
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
INT8 = WeightRecipe("int8")
DOWN = "model.layers.1.mlp.experts.down_proj.weight"


def stacked(make: Make, family: str = "mixtral") -> PreTrainedModel:
    model = make(family)
    stack_experts(model)
    return model


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
def test_a_model_with_stacks_answers_as_before(make: Make, batches: list[Tensor], family: str) -> None:
    model = make(family)
    with torch.no_grad():
        before = model(input_ids=batches[0]).logits
        stack_experts(model)
        after = model(input_ids=batches[0]).logits
    assert len(expert_layers(model)) == 2 * model.config.num_hidden_layers
    assert (after - before).abs().max() < 1e-4 * before.std()
    assert not any(name.endswith(("gate_up_proj", "down_proj")) for name, _ in model.named_parameters())


def test_inputs_of_stacks_are_rounded_where_the_engine_rounds_them(make: Make, batches: list[Tensor]) -> None:
    model = stacked(make)
    (layer,) = (layer for layer in expert_layers(model) if layer.weight == DOWN)
    seen: list[Tensor] = []
    rows, experts = torch.randn(6, layer.matrix.shape[1]), torch.tensor([0, 1, 2, 3, 0, 1])
    for own in (INT8, WeightRecipe("int8", weight_only=True)):
        with torch.no_grad(), fake_quantized(model, Recipe({DOWN: own})):
            seen.append(layer.module(rows, experts))
    weight = torch.from_numpy(INT8.restore(layer.matrix.numpy())).reshape(layer.module.weight.shape)
    for found, given in zip(seen, (rounded_activations(rows, INT8), rows), strict=True):
        expected = torch.stack([weight[expert] @ row for row, expert in zip(given, experts, strict=True)])
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "family", "expected", "weight_only"),
    [
        ("int8", "onnxruntime", "int8", False),
        ("int4", "onnxruntime", "int8", False),
        ("int8", "tensorrt", "int8", True),
        ("int4", "tensorrt", "int4", True),
        ("fp8", "tensorrt", "fp8", True),
    ],
)
def test_the_recipe_of_a_stack(
    make: Make, batches: list[Tensor], form: str, family: str, expected: str, weight_only: bool
) -> None:
    model = make("mixtral", hidden_size=64, intermediate_size=64)
    stack_experts(model)
    options = RecipeOptions(scale_type="fp16") if family == "tensorrt" else RecipeOptions(limit=127)
    recipe = choose(model, batches, form, family, options)  # type: ignore[arg-type]
    found = [recipe.weights[layer.weight] for layer in expert_layers(model)]
    assert {own.format for own in found} == {expected}
    assert {own.weight_only for own in found} == {weight_only}
    # What a Gather picks is not stored as uint8 on hosts whose int8 products saturate: within 64 none does.
    assert {own.limit for own in found if own.format == "int8"} <= {64 if family == "onnxruntime" else 127}
    others = [own for name, own in recipe.weights.items() if "layers" in name and own not in found]
    assert {own.limit for own in others if own.format == "int8"} <= {127}
    assert any("slower than in fp32" in note for note in recipe.notes) == (form == "int4" and family == "onnxruntime")
    assert bytes_of(model, recipe.weights) < (0.45 if expected != "int4" else 0.35) * bytes_of(model, {})


def test_experts_that_saw_enough_are_fitted_the_others_rounded_to_nearest(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stacked(make)
    (layer,) = (layer for layer in expert_layers(model) if layer.weight == DOWN)
    rows: dict[int, list[Tensor]] = {}

    def watch(module: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        for row, expert in zip(*args, strict=True):
            rows.setdefault(int(expert), []).append(row)

    hook = layer.module.register_forward_pre_hook(watch)
    texts = [batch[:, : 24 - 3 * number] for number, batch in enumerate(batches * 2)]  # padded when together
    with torch.no_grad():
        for text in texts:
            model(input_ids=text)
    hook.remove()
    experts, outputs, inputs = layer.module.weight.shape
    enough = {expert for expert in range(experts) if len(rows.get(expert, [])) >= inputs}
    assert 0 < len(enough) < experts
    found = choose_integers(model, texts, {DOWN: INT8}, damping=0.01)
    assert (found.fitted, found.experts) == (len(enough), experts)
    values, scales = found.weights[DOWN].quantize(layer.matrix.numpy())
    nearest, nearest_scales = INT8.quantize(layer.matrix.numpy())
    assert np.array_equal(scales, nearest_scales)
    for expert in range(experts):
        part = slice(expert * outputs, (expert + 1) * outputs)
        assert np.array_equal(values[part], nearest[part]) == (expert not in enough)
        if expert in enough:
            mine = torch.stack(rows[expert])
            off = [
                float((mine @ (torch.from_numpy(own * scales[part, None]) - layer.matrix[part]).T).square().sum())
                for own in (values[part], nearest[part])
            ]
            assert off[0] < 0.9 * off[1]
    calls: list[Tensor] = []
    spy = lambda *arguments: calls.append(arguments[0]) or rounded(*arguments)  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr(gptq, "rounded", spy)
    again = choose_integers(model, texts, {DOWN: INT8}, damping=0.01)
    assert np.array_equal(again.weights[DOWN].quantize(layer.matrix.numpy())[0], values)
    assert len(calls) == len(enough)  # the others are not worked on column by column
    assert choose_integers(model, texts[:1], {DOWN: INT8}).weights == {}
    assert choose_integers(model, texts, {}).experts == 0
