"""Outliers move into the weights; not one bit of an answer moves with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from specexport.exporter.weights.collect_activations import Observations, observe
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.producers import Probe
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from specexport.exporter.weights.smoothing import Migration, Rule, channel_scales, migrate
from torch import Tensor
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
# The producers of the first layer's groups that a family's arithmetic lets through.
PRODUCERS: dict[str, dict[str, str]] = {
    "llama": {
        "q_proj": "input_layernorm",
        "o_proj": "v_proj",
        "gate_proj": "post_attention_layernorm",
        "down_proj": "up_proj",
    },
    "qwen3": {
        "q_proj": "input_layernorm",
        "o_proj": "v_proj",
        "gate_proj": "post_attention_layernorm",
        "down_proj": "up_proj",
    },
    # Its norms multiply by 1 + w.
    "gemma": {"o_proj": "v_proj", "down_proj": "up_proj"},
    # GELU stands between c_fc and c_proj of the feed-forward part.
    "gpt2": {"attn.c_attn": "ln_1", "attn.c_proj": "c_attn", "c_fc": "ln_2"},
    # The last half of gate and up in one; of q, k and v in one, v has fewer channels.
    "phi3": {"qkv_proj": "input_layernorm", "gate_up_proj": "post_attention_layernorm", "down_proj": "gate_up_proj"},
    # LayerNorms with biases; ReLU lets powers of two through.
    "opt": {"q_proj": "self_attn_layer_norm", "out_proj": "v_proj", "fc1": "final_layer_norm", "fc2": "fc1"},
    # One norm in front of both parts.
    "cohere": {"q_proj": "input_layernorm", "o_proj": "v_proj", "down_proj": "up_proj"},
    # The norm in front of the experts feeds the router too, which is no linear layer.
    "mixtral": {"q_proj": "input_layernorm", "o_proj": "v_proj"},
}
# Rows that share a scale: powers of two.
STATIC = WeightRecipe("int8", input_scale=0.02)
BY_ROW = WeightRecipe("int8")


def logits(model: PreTrainedModel, batches: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [model(input_ids=batch).logits for batch in batches]


def migrated(
    model: PreTrainedModel, batches: list[Tensor], rule: Rule = "smoothquant", recipe: WeightRecipe | None = None
) -> tuple[Observations, tuple[Migration, ...]]:
    return migrate(model, observe(model, batches), batches[0], rule, lambda group, layer: recipe or STATIC)


@pytest.mark.parametrize("family", PRODUCERS)
def test_answers_stay_equal_bit_for_bit(make: Make, batches: list[Tensor], family: str) -> None:
    model = make(family)
    before = logits(model, batches)
    observations, done = migrated(model, batches)
    assert all(map(torch.equal, before, logits(model, batches)))
    first = {
        migration.weights[0].removesuffix(".weight"): migration.producer
        for migration in done
        if ".0." in migration.weights[0]
    }
    assert len(first) == len(PRODUCERS[family])
    for layer, producer in PRODUCERS[family].items():
        found = next(path for path in first if path.endswith(layer))
        assert first[found].endswith(producer)
    assert any(migration.strength > 0 for migration in done) or family == "gemma"
    assert all(migration.after < migration.before or migration.strength == 0 for migration in done)
    # What is known of the inputs moved with them.
    again = observe(model, batches)
    for told, seen in zip(observations.groups, again.groups, strict=True):
        assert torch.equal(told.largest, seen.largest)
        assert torch.equal(told.elsewhere, seen.elsewhere)
        assert torch.equal(told.rows, seen.rows)
        torch.testing.assert_close(told.mean_square, seen.mean_square)


@pytest.mark.parametrize(("rule", "recipe"), [("smoothquant", BY_ROW), ("awq", WeightRecipe("int4", block=16))])
def test_the_quantized_model_is_nearer(make: Make, batches: list[Tensor], rule: Rule, recipe: WeightRecipe) -> None:
    model = make("llama")
    exact = logits(model, batches)

    def off() -> float:
        names = [name for name, parameter in model.named_parameters() if "proj" in name]
        with fake_quantized(model, Recipe(dict.fromkeys(names, recipe))):
            return sum(
                float((found - known).square().sum())
                for found, known in zip(logits(model, batches), exact, strict=True)
            )

    before = off()
    migrated(model, batches, rule, recipe)
    assert off() < (0.97 if recipe is BY_ROW else 0.85) * before


def test_an_untied_head_takes_the_last_norm_s(make: Make, batches: list[Tensor]) -> None:
    _, done = migrated(make("llama", tie_word_embeddings=False), batches)
    assert done[-1].weights == ("lm_head.weight",)
    assert done[-1].producer == "model.norm"


def test_everything_is_taken_back_where_the_whole_model_answers_otherwise(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("llama")
    before = [parameter.clone() for parameter in model.parameters()]
    monkeypatch.setattr(Probe, "unchanged", lambda probe: False)
    observations, done = migrated(model, batches)
    assert done == ()
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(observations.groups[0].largest, observe(model, batches).groups[0].largest)


def test_scales_are_powers_of_two_that_flatten() -> None:
    inputs, weights = torch.tensor([1.0, 1, 64, 0, 1]), torch.tensor([1.0, 1, 1, 1, 0])
    scales = channel_scales(inputs, weights, 0.5, "awq")
    assert scales.tolist() == [0.5, 0.5, 4, 1, 1]
    assert channel_scales(inputs, weights, 0.5, "smoothquant").tolist() == [0.5, 0.5, 4, 1, 1]
    # The weights' own outliers are spared by SmoothQuant and not looked at by AWQ.
    heavy = torch.tensor([1.0, 64, 1, 1, 1])
    assert channel_scales(torch.ones(5), heavy, 0.5, "smoothquant").tolist() == [2, 0.25, 2, 2, 2]
    assert channel_scales(torch.ones(5), heavy, 0.5, "awq").tolist() == [1] * 5
    assert channel_scales(torch.zeros(2), torch.ones(2), 0.5, "awq").tolist() == [1, 1]
