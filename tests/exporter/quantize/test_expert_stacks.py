"""Stacks of experts in int8 on ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.engines.onnxruntime.decoder import OrtDecoder
from specexport.exporter.weights.experts import expert_layers
from specexport.exporter.weights.recipe import Recipe
from support.quantized import Quantized, load, plain_recipe
from support.tiny import CONTRACT, LLAMA, save_model

CONFIG = LLAMA | dict(hidden_size=128, num_experts_per_tok=2, initializer_range=0.1)
FAMILIES = {
    "mixtral": CONFIG | dict(num_local_experts=4, intermediate_size=96),
    "qwen3_moe": CONFIG | dict(num_experts=8, moe_intermediate_size=48, head_dim=32),
    "olmoe": CONFIG | dict(num_experts=8, intermediate_size=48),
}


def made(folder: Path, family: str) -> Quantized:
    model = load(save_model(folder / "checkpoint", family, config=FAMILIES[family]))
    recipe = plain_recipe(model, "int8", "ort")
    own = next(iter(recipe.weights.values()))
    whole = Recipe(dict(recipe.weights) | {layer.weight: replace(own) for layer in expert_layers(model)})
    return Quantized(folder, model, "int8", "ort", CONTRACT, whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_the_same_bits_in_passes_of_any_width(family: str, tmp_path: Path) -> None:
    found = made(tmp_path, family)
    subject = found.subject
    decoder = OrtDecoder(found.path, subject.spec, subject.contract)
    tokens = np.random.default_rng(0).integers(2, LLAMA["vocab_size"], 40).tolist()

    def rows(width: int) -> np.ndarray:
        decoder.overwrite_rows(0, 0.0)
        return np.concatenate(
            [decoder.step(tokens[start : start + width], start).copy() for start in range(0, len(tokens), width)]
        )

    plain = rows(1)
    for width in (2, 4, 5):
        assert np.array_equal(rows(width), plain)


@pytest.mark.slow
def test_a_stack_is_stored_once_in_a_byte_a_weight(tmp_path: Path) -> None:
    found = made(tmp_path, "mixtral")
    graph = ir.load(found.path).graph
    kinds = {value.name: value.dtype for value in graph.initializers.values() if "experts" in (value.name or "")}
    assert sum(kind == ir.DataType.INT8 for kind in kinds.values()) == 4
    assert not any((name or "").endswith("proj.weight") for name in kinds)
    stacks = sum(layer.module.weight.numel() for layer in expert_layers(found.subject.model))
    floats = sum(parameter.numel() for parameter in found.subject.model.parameters()) - stacks
    assert (tmp_path / found.subject.spec.weights).stat().st_size < 1.1 * stacks + 4 * floats
