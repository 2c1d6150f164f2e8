"""Outliers move into the weights; not one bit of an answer moves with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from specexport.calibration.weights.collect_activations import Observations, observe
from specexport.calibration.weights.fake_quant import fake_quantized
from specexport.calibration.weights.producers import Probe
from specexport.calibration.weights.recipe import Recipe, WeightRecipe
from specexport.calibration.weights.smoothing import (
    Migration,
    Rule,
    _search_by_rows,
    channel_scales,
    migrate,
)
from specexport.exporter.checkpoints.half_precision import fp32_arithmetic
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_stay_exact_in_fp32_arithmetic(
    make: Make, batches: list[Tensor], dtype: torch.dtype
) -> None:
    model = make("llama").to(dtype)
    with fp32_arithmetic(model):
        before = logits(model, batches)
        _, done = migrated(model, batches)
        assert all(map(torch.equal, before, logits(model, batches)))
    assert sum(migration.strength > 0 for migration in done) >= 3
    assert all(parameter.dtype == dtype for parameter in model.parameters())


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


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_rows_with_scales_of_their_own_take_any_scale(make: Make, batches: list[Tensor], family: str) -> None:
    model = make(family)
    before = torch.cat(logits(model, batches), 1)
    weights = {name: parameter.clone() for name, parameter in model.named_parameters()}
    observations, done = migrated(model, batches, recipe=BY_ROW)
    assert any(migration.strength > 0 for migration in done)
    assert all(migration.after < migration.before or migration.strength == 0 for migration in done)
    off = (torch.cat(logits(model, batches), 1) - before).abs().max() / before.std()
    assert 0 < off < 1e-4
    scaled = next(migration for migration in done if migration.strength > 0).weights[0]
    ratios = dict(model.named_parameters())[scaled] / weights[scaled]
    mantissas, _ = torch.frexp(ratios)
    assert len(mantissas.abs().unique()) > 2  # of powers of two there is one
    for told, seen in zip(observations.groups, observe(model, batches).groups, strict=True):
        torch.testing.assert_close(told.rows, seen.rows, rtol=1e-3, atol=1e-3)


def test_a_few_loud_rows_do_not_decide(make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a text's first tokens: in the tensor's error they drown all others, in the rows' they are a few."""
    model = make("llama")
    group = next(group for group in observe(model, batches).groups if "down_proj" in group.layers[0].path)
    loud = torch.zeros(2, group.inputs)
    loud[:, 7] = 1e3 * float(group.rows.abs().max())
    mixed = replace(group, rows=torch.cat([loud[:1], group.rows, loud[:1]]))
    producer = Probe(model, batches[0]).producer(group)
    assert producer is not None
    alone, together = (_search_by_rows(found, producer, [BY_ROW])[1] for found in (group, mixed))
    quiet = torch.arange(group.inputs) != 7
    spread = (alone[quiet].log2() - together[quiet].log2()).std()
    assert spread < 0.2
    judged: list[int] = []
    monkeypatch.setattr(f"{migrate.__module__}.output_error", lambda rows, *_: judged.append(len(rows)) or 1.0)
    _search_by_rows(group, producer, [BY_ROW])
    assert set(judged) == {len(group.rows) - len(group.rows) // 2}  # none that it was chosen on


def test_norms_of_a_rotated_stream_are_left_alone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama")
    _, done = migrate(model, observe(model, batches), batches[0], "smoothquant", lambda *_: BY_ROW, norms=False)
    assert {migration.producer.rpartition(".")[2] for migration in done} == {"v_proj", "up_proj"}


def test_a_tied_head_is_left_alone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama", tie_word_embeddings=True)
    table = model.get_input_embeddings().weight.clone()
    _, done = migrated(model, batches)
    assert not any("embed_tokens" in migration.weights[0] for migration in done)
    assert torch.equal(model.get_input_embeddings().weight, table)


def test_an_untied_head_takes_the_last_norm_s(make: Make, batches: list[Tensor]) -> None:
    _, done = migrated(make("llama", tie_word_embeddings=False), batches)
    assert done[-1].weights == ("lm_head.weight",)
    assert done[-1].producer == "model.norm"


def test_weights_that_are_used_twice_are_left_alone(make: Make, batches: list[Tensor]) -> None:
    model = make("llama")
    model.model.layers[1] = model.model.layers[0]
    before = [parameter.clone() for parameter in model.parameters()]
    _, done = migrated(model, batches)
    assert [migration.weights for migration in done] in ([], [("lm_head.weight",)])
    assert all(map(torch.equal, before[:-2], list(model.parameters())[:-2]))


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
