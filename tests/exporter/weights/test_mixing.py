"""Which layers of an int4 model are raised to int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from specexport.exporter.weights import choose as choosing
from specexport.exporter.weights import mixing, turning
from specexport.exporter.weights.choose import RecipeOptions, choose
from specexport.exporter.weights.experts import expert_layers, stack_experts
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.mixing import Upgrade, bytes_of, choose_upgrades
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import Tensor, nn
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
OPTIONS = RecipeOptions(limit=127)


def up(name: str, saved: float, size: float) -> Upgrade:
    return Upgrade((name,), saved, size)


def names(chosen: list[Upgrade]) -> list[str]:
    return [name for one in chosen for name in one.weights]


def test_what_saves_most_by_byte_comes_first_and_what_does_not_fit_is_passed_over() -> None:
    offers = [up("large", 9, 10), up("best", 2, 1), up("wide", 8, 8), up("small", 0.5, 1)]
    assert names(choose_upgrades(offers, 11, 20, 0)) == ["best", "wide", "small"]
    assert names(choose_upgrades(offers, 9, 20, 0)) == ["best", "wide"]
    assert names(choose_upgrades(offers, 0.5, 20, 0)) == []


def divergence(model: PreTrainedModel, recipe: Recipe, batches: list[Tensor]) -> float:
    """Of the layers, without table and head."""
    with torch.no_grad():
        exact = torch.cat([model(input_ids=batch).logits[0].log_softmax(-1) for batch in batches])
        with fake_quantized(model, Recipe({name: own for name, own in recipe.weights.items() if "layers" in name})):
            found = torch.cat([model(input_ids=batch).logits[0].log_softmax(-1) for batch in batches])
    return float((exact.exp() * (exact - found)).sum(-1).mean())


def calm(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 0.5
    return model


def test_within_the_budget_and_layers_of_one_input_together(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "LM_HEAD_DIVERGENCE_LIMIT", 1e9)
    monkeypatch.setattr(choosing, "BLOCK", 16)
    model = calm(make("llama", num_hidden_layers=4))
    four = choose(model, batches, "int4", "onnxruntime", replace(OPTIONS, mixing=False))
    budget = bytes_of(model, four.weights) / bytes_of(model, {}) + 0.01
    model = calm(make("llama", num_hidden_layers=4))
    recipe = choose(model, batches, "int4", "onnxruntime", replace(OPTIONS, budget=budget))
    raised = [name for name, own in recipe.weights.items() if own.format == "int8"]
    assert raised
    part = bytes_of(model, recipe.weights) / bytes_of(model, {})
    assert budget - 0.01 < part <= budget
    assert recipe.weights[raised[0]].stored_bytes(8, 64) == 8 * 64 + 4 * 8  # a scale of 4 bytes for each output
    assert WeightRecipe("int4", block=16).stored_bytes(8, 64) == 8 * 64 / 2 + 4 * 8 * 4  # for each block
    assert all(recipe.weights[name].stored is not None for name in raised)
    assert all(recipe.weights[name].stored[0].dtype == "int8" for name in raised)
    for index in range(4):
        for parts in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            formats = {recipe.weights[f"model.layers.{index}.{part}.weight"].format for part in parts}
            assert len(formats) == 1
    (note,) = (note for note in recipe.notes if "int4 costs most" in note)
    assert note.startswith(f"{len(raised)} of 29 layers are kept in int8, where int4 costs most: by estimate ")


def test_it_is_nearer_than_int4_and_than_what_is_raised_at_random(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "LM_HEAD_DIVERGENCE_LIMIT", 1e9)

    def off(options: RecipeOptions) -> float:
        model = calm(make("llama", num_hidden_layers=4))
        return divergence(model, choose(model, batches, "int4", "onnxruntime", options), batches)

    options = replace(OPTIONS, budget=0.23)
    mixed = off(options)
    assert mixed < 0.8 * off(replace(options, mixing=False))

    def backwards(model: nn.Module, tokens: list[Tensor], *given: Any) -> dict[str, dict[str, float]]:
        return {name: {"int4": 1 / own["int4"], "int8": 0.0} for name, own in estimated(model, tokens, *given).items()}

    estimated = mixing.divergences
    monkeypatch.setattr(mixing, "divergences", backwards)
    assert mixed < off(options)


def test_inputs_of_raised_layers_only_are_turned(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turning, "WORTH", 10.0)
    monkeypatch.setattr(mixing, "ENOUGH", 0.0)
    monkeypatch.setattr(choosing, "BLOCK", 16)
    model = calm(make("llama", num_hidden_layers=3))
    with torch.no_grad():
        exact = model(input_ids=batches[0]).logits
    recipe = choose(model, batches, "int4", "onnxruntime", replace(OPTIONS, budget=0.22))
    turned = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if any(isinstance(hook, turning.Turn) for hook in module._forward_pre_hooks.values())
    }
    single = {name for name in recipe.weights if "down_proj" in name or "o_proj" in name}
    assert turned == {name for name in single if recipe.weights[name].format == "int8"}
    assert 0 < len(turned) < len(single)
    assert f"of these, {len(turned)} rotate their inputs by Hadamard matrices at run time" in recipe.notes
    with torch.no_grad():
        off = (model(input_ids=batches[0]).logits - exact).abs().max()
    assert off < 1e-4 * exact.std()


def test_a_mixture_is_mixed_without_its_experts_which_are_in_int8_anyway(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "LM_HEAD_DIVERGENCE_LIMIT", 1e9)

    def chosen(budget: float) -> tuple[PreTrainedModel, Recipe, list[str]]:
        model = calm(make("mixtral"))
        stack_experts(model)
        recipe = choose(model, batches, "int4", "onnxruntime", replace(OPTIONS, budget=budget))
        stacks = {layer.weight for layer in expert_layers(model)}
        assert {recipe.weights[name].format for name in stacks} == {"int8"}
        raised = [name for name, own in recipe.weights.items() if own.format == "int8" and name not in stacks]
        return model, recipe, raised

    model, recipe, raised = chosen(0.24)
    assert raised
    part = bytes_of(model, recipe.weights) / bytes_of(model, {})
    assert part > 0.24
    note = f"experts are not in int4, nor in its budget: all weights take {part:.3f} of their bytes in fp32"
    assert note in recipe.notes
    stacks = {layer.weight for layer in expert_layers(model)}
    assert bytes_of(model, recipe.weights, stacks) <= 0.24 * bytes_of(model, {}, stacks)
    monkeypatch.setattr(mixing, "divergences", lambda *_: pytest.fail("estimated what does not fit"))
    monkeypatch.setattr(mixing, "worthwhile_turns", lambda *_: pytest.fail("judged what does not fit"))
    assert chosen(0.1)[2] == []
