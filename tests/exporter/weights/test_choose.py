"""The recipe of a whole model: what each weight becomes, and what is said of those that become something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from specexport.bundle import Family, Format
from specexport.errors import CheckpointError
from specexport.exporter.weights import choose as choosing
from specexport.exporter.weights.choose import RecipeOptions, choose, recipe_steps
from specexport.exporter.weights.collect_activations import InputGroup, input_scale
from specexport.exporter.weights.fake_quant import fake_quantized
from specexport.exporter.weights.layers import LinearLayer, check_finite
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from torch import Tensor, nn
from transformers import PreTrainedModel

Make = Callable[..., PreTrainedModel]
DOWN = "model.layers.0.mlp.down_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
PLAIN = RecipeOptions(rotating=False, smoothing=False, second_order=False, mixing=False)


@pytest.fixture(autouse=True)
def _no_outliers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "outlier" not in request.node.name:
        monkeypatch.setattr(choosing, "OUTLIER", 1e9)


def divergence(model: PreTrainedModel, recipe: Recipe, exact: list[Tensor], batches: list[Tensor]) -> float:
    with fake_quantized(model, recipe), torch.no_grad():
        found = [model(input_ids=batch).logits.log_softmax(-1) for batch in batches]
    return sum(
        float((known.exp() * (known - own)).sum(-1).mean()) for known, own in zip(exact, found, strict=True)
    ) / len(batches)


@pytest.mark.parametrize(
    ("form", "family", "limit", "static"),
    [
        ("int8", "onnxruntime", 64, False),
        ("int8", "tensorrt", 127, True),
        ("fp8", "tensorrt", 127, True),
        ("int4", "tensorrt", 64, False),
    ],
)
def test_every_layer_and_the_table_have_their_recipe(
    make: Make,
    batches: list[Tensor],
    form: Format,
    family: Family,
    limit: int,
    static: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing, "LM_HEAD_DIVERGENCE_LIMIT", 1e9)
    monkeypatch.setattr(choosing, "BLOCK", 16)
    model = make("llama", tie_word_embeddings=True)
    recipe = choose(model, batches, form, family, PLAIN)
    assert list(recipe.weights) == [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
    for found in recipe.weights.values():
        assert found.format == form
        assert (found.input_scale is not None) == static
        assert form != "int8" or found.limit == limit
        assert not found.signed
    # Layers of one input share its scale: there is one rounding in front of them.
    keys = [QUERY.replace("q_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
    assert len({recipe.weights[key].input_scale for key in keys}) == 1
    assert recipe.notes == ()


@pytest.mark.parametrize(
    ("form", "family"),
    [
        ("int8", "onnxruntime"),
        ("int8", "tensorrt"),
        ("int8", "onnxruntime-cuda"),
        ("int4", "onnxruntime"),
        ("fp8", "tensorrt"),
    ],
)
def test_the_quantized_model_answers_nearly_as_before(
    make: Make, batches: list[Tensor], form: Format, family: Family
) -> None:
    model = make("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 0.5
        exact = [model(input_ids=batch).logits.log_softmax(-1) for batch in batches]
    steps: list[str] = []
    recipe = choose(model, batches, form, family, RecipeOptions(), steps.append)
    assert tuple(steps) == recipe_steps(form)
    assert divergence(model, recipe, exact, batches) < (0.3 if form == "int4" else 0.05)


@pytest.mark.parametrize("family", ["onnxruntime", "tensorrt"])
def test_rotated_and_rounded_to_second_order_it_answers_better(
    make: Make, batches: list[Tensor], family: Family
) -> None:
    def off(options: RecipeOptions) -> float:
        model = make("llama")
        with torch.no_grad():
            exact = [model(input_ids=batch).logits.log_softmax(-1) for batch in batches]
        return divergence(model, choose(model, batches, "int8", family, options), exact, batches)

    assert off(RecipeOptions()) < 0.8 * off(PLAIN)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_for_cuda_weights_are_in_blocks_and_activations_stay_as_they_are(
    make: Make, batches: list[Tensor], form: Format
) -> None:
    model = make("llama", intermediate_size=36, hidden_size=64)
    recipe = choose(model, batches, form, "onnxruntime-cuda", replace(PLAIN, rotating=True, scale_type="fp16"))
    kept = {name for name, found in recipe.weights.items() if found.format == "float"}
    assert kept == {name for name in recipe.weights if name.endswith("down_proj.weight")}
    assert any("down_proj" in note and "kept in float: no block of 32 inputs" in note for note in recipe.notes)
    for name, found in recipe.weights.items():
        if name not in kept:
            assert (found.block, found.scale_type, found.input_scale) == (32, "fp16", None)
            assert found.format == "int4" or (found.weight_only and found.limit == 127)


def test_for_cuda_experts_stay_float(make: Make, batches: list[Tensor]) -> None:
    sizes = dict(hidden_size=64, moe_intermediate_size=32, intermediate_size=64)
    recipe = choose(make("qwen3_moe", **sizes), batches, "int4", "onnxruntime-cuda", PLAIN)
    assert not any("experts" in name for name in recipe.weights)
    assert any("experts" in note and "kept in float" in note for note in recipe.notes)


@pytest.mark.parametrize(
    ("form", "family"),
    [("int4", "onnxruntime"), ("int4", "tensorrt"), ("int8", "onnxruntime-cuda"), ("fp8", "tensorrt")],
)
def test_others_are_not_rotated(
    make: Make, batches: list[Tensor], form: Format, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "rotate", lambda *_: pytest.fail("rotated"))
    recipe = choose(make("llama"), batches, form, family)
    assert (recipe.weights[QUERY].stored is not None) == (form != "fp8")


def test_all_tables_with_a_row_for_each_token_are_rounded(make: Make, batches: list[Tensor]) -> None:
    """Per-layer embeddings too, which are half of the weights of Gemma 4 E2B; not those of positions."""
    gemma = make("gemma4_text", vocab_size=100, hidden_size_per_layer_input=16, vocab_size_per_layer_input=96)
    assert (
        choose(gemma, batches, "int8", "onnxruntime", PLAIN).weights["model.embed_tokens_per_layer.weight"].block == 32
    )
    assert "transformer.wpe.weight" not in choose(make("gpt2"), batches, "int8", "onnxruntime", PLAIN).weights
    kept = replace(PLAIN, floats=("model.embed_tokens.weight",))  # as of a table that only a graph beside reads
    untied = make("llama", tie_word_embeddings=False)
    assert "model.embed_tokens.weight" not in choose(untied, batches, "int8", "onnxruntime", kept).weights


def test_what_was_done_is_noted_and_tables_are_rounded_to_nearest(make: Make, batches: list[Tensor]) -> None:
    model = make("llama", tie_word_embeddings=False)
    recipe = choose(model, batches, "int8", "onnxruntime", RecipeOptions(limit=127))
    assert recipe.notes == (
        "the residual stream is rotated (5 norms folded into the layers that read them)",
        "15 of 16 weights are rounded by GPTQ",
    )
    table = recipe.weights["model.embed_tokens.weight"]
    assert (table.format, table.block, table.stored) == ("int8", 32, None)  # looked up only: a finer scale is free
    tied = choose(make("llama", tie_word_embeddings=True), batches, "int8", "onnxruntime", PLAIN)
    assert tied.weights["model.embed_tokens.weight"].block == 0  # a product too
    other = choose(make("llama", tie_word_embeddings=False), batches, "int8", "tensorrt", PLAIN)
    assert other.weights["model.embed_tokens.weight"].block == 0
    values, _ = recipe.weights[DOWN].quantize(model.get_parameter(DOWN).detach().numpy())
    assert np.abs(values).max() == 127
    assert values is recipe.weights[DOWN].stored[0]
    assert choose(make("llama"), batches, "int8", "onnxruntime").weights[DOWN].limit == 64


def test_int4_takes_blocks_of_32_and_int8_where_they_do_not_fit(make: Make, batches: list[Tensor]) -> None:
    recipe = choose(make("llama", intermediate_size=36), batches, "int4", "onnxruntime", PLAIN)
    assert recipe.weights[QUERY].block == 32
    assert recipe.weights[QUERY].importance is not None
    assert recipe.weights[QUERY].signed
    assert recipe.weights[DOWN].format == "int8"
    assert recipe.notes[0].startswith(
        f"{DOWN} (36 inputs), model.layers.1.mlp.down_proj.weight (36 inputs) kept in int8"
    )
    assert choose(make("llama", intermediate_size=64), batches, "int4", "tensorrt", PLAIN).weights[DOWN].block == 32


def test_a_head_that_int4_would_harm_is_int8(
    make: Make, batches: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = choose(
        make("llama", tie_word_embeddings=False),
        batches,
        "int4",
        "onnxruntime",
        PLAIN,
    )
    assert recipe.weights["lm_head.weight"].format == "int8"
    assert recipe.weights["model.embed_tokens.weight"].format == "int4"  # a table of its own
    assert "lm_head.weight kept in int8: the last layer in int4 alone moves" in recipe.notes[-1]
    monkeypatch.setattr(choosing, "LM_HEAD_DIVERGENCE_LIMIT", 10.0)
    assert choose(make("llama"), batches, "int4", "onnxruntime", PLAIN).weights["lm_head.weight"].format == "int4"


def test_an_outlier_is_kept_in_a_higher_format_with_its_whole_group(make: Make, batches: list[Tensor]) -> None:
    model = make("gpt2", tie_word_embeddings=True)
    with torch.no_grad():  # two weights that cancel, and drown the rest of every row
        layer = model.transformer.h[1].mlp.c_proj
        layer.weight[3] *= 1e-4
        model.transformer.h[1].mlp.c_fc.bias[3] += 1e4
    recipe = choose(model, batches, "int8", "tensorrt", RecipeOptions(rotating=False))
    assert recipe.weights["transformer.h.1.mlp.c_proj.weight"].format == "float"
    assert recipe.weights["transformer.h.0.mlp.c_proj.weight"].format == "int8"
    assert recipe.notes[0].startswith("transformer.h.1.mlp.c_proj.weight kept in float: ")


def test_what_stays_as_it_is_has_no_recipe_and_no_note(make: Make, batches: list[Tensor]) -> None:
    model = make()
    recipe = choose(model, batches, "int8", "onnxruntime", replace(PLAIN, floats=(DOWN,)))
    assert set(choose(make(), batches, "int8", "onnxruntime", PLAIN).weights) - set(recipe.weights) == {DOWN}
    assert not any(DOWN in note for note in recipe.notes)


def group(rows: Tensor, weight: Tensor) -> InputGroup:
    module = nn.Linear(rows.shape[1], 8, bias=False)
    module.weight.data = weight
    layer = LinearLayer("layer", module, "layer.weight", False)
    return InputGroup((layer,), float(rows.abs().max()), rows.square().mean(0), rows, 1)


def test_a_static_scale_clips_a_lone_peak_only_where_its_column_counts_little() -> None:
    rows = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    even, recipe = torch.ones(8, 64), WeightRecipe("int8", limit=127)
    assert input_scale(group(rows.sign() * 3, even), recipe) == pytest.approx(3 / 127)
    assert input_scale(group(rows.sign() * 3, even), WeightRecipe("fp8")) == pytest.approx(3 / 448)
    assert input_scale(group(torch.zeros(4, 8), even[:, :8]), recipe) == 1
    rows[0, 5] = 60
    light, heavy = even.clone(), even.clone()
    light[:, 5], heavy[:, 5] = 0.01, 100
    assert input_scale(group(rows, light), recipe) < 0.3 * 60 / 127
    assert input_scale(group(rows, heavy), recipe) == pytest.approx(60 / 127)
    held = input_scale(group(rows, heavy), replace(recipe, scale_type="fp16"))
    assert held == float(np.float16(60 / 127))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(make: Make, value: float) -> None:
    model = make("llama")
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.up_proj").weight[3, 4] = value
        model.get_submodule("lm_head").weight[0] = value
    with pytest.raises(CheckpointError) as caught:
        check_finite(model)
    assert str(caught.value).startswith(
        "model.layers.1.mlp.up_proj.weight: 1 of its 1536 weights are NaN or infinite, expected finite"
    )
