"""Stacks of experts are proved expert by expert: also those that no token of the proof goes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import Format, Precision
from specexport.errors import ProofError
from specexport.exporter.dialects import Dialect
from specexport.exporter.proving.quantized_ops import quantized_ops
from specexport.exporter.weights.experts import expert_layers
from specexport.exporter.weights.recipe import Recipe
from support.quantized import Damage, Quantized, change, load, plain_recipe, stored
from support.tiny import CONTRACT, LLAMA, save_model
from transformers import PreTrainedModel

EXPERTS = 8
CONFIG = LLAMA | dict(
    hidden_size=64, intermediate_size=32, num_experts=EXPERTS, num_experts_per_tok=2, initializer_range=0.1
)
Form = tuple[Format, Dialect, Precision]
FORMS: list[Form] = [
    ("int8", "ort", "fp32"),
    ("int8", "onnx", "fp32"),
    ("int4", "onnx", "fp16"),
    ("fp8", "rows", "fp16"),
]
DOWN = "layers.1.mlp.experts.down_proj"
Make = Callable[[Form], Quantized]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    base = tmp_path_factory.mktemp("experts")
    made: dict[Form, Quantized] = {}

    def make(form: Form) -> Quantized:
        if form not in made:
            model = load(save_model(base / "checkpoint", "olmoe", config=CONFIG), form[2])
            made[form] = whole(base / "-".join(form), model, form)
        return made[form]

    return make


def whole(folder: Path, model: PreTrainedModel, form: Form) -> Quantized:
    """With its stacks in the same format."""
    recipe = plain_recipe(model, form[0], form[1])
    own = replace(next(iter(recipe.weights.values())), input_scale=None, weight_only=form[1] != "ort")
    recipe = Recipe(dict(recipe.weights) | {layer.weight: own for layer in expert_layers(model)})
    return Quantized(folder, model, *form[:2], replace(CONTRACT, precision=form[2]), recipe)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_right_graph_passes(form: Form, make: Make) -> None:
    made = make(form)
    graph = ir.load(made.path)
    assert sum(bool(site.experts) for site in quantized_ops(graph.graph)) == 4
    assert not any("experts" in name and name.endswith("proj.weight") for name in graph.graph.initializers)
    proof = made.prove()
    assert proof.layer_error < 1
    assert proof.exact_error < (1e-4 if form[2] == "fp32" else 5e-3)


def per_expert(array: np.ndarray) -> np.ndarray:
    """A view by expert, of an array whose first axis is that of experts or of all their outputs."""
    return array.reshape(EXPERTS, -1)


def scale_of_one_off(expert: int) -> Damage:
    def off(scales: np.ndarray) -> np.ndarray:
        per_expert(scales)[expert] *= scales.dtype.type(1.1)
        return scales

    return lambda model: change(stored(model, DOWN, "scales", "scale"), off)


def two_swapped(model: ir.Model) -> None:
    """Weights and scales: each of them is what it should be, for the other."""

    def swapped(array: np.ndarray) -> np.ndarray:
        by_expert = per_expert(array)
        by_expert[[2, 5]] = by_expert[[5, 2]]
        return array

    change(stored(model, DOWN, "int8", "int4", "fp8"), swapped)
    change(stored(model, DOWN, "scales", "scale"), swapped)


def values_of_one_off(model: ir.Model) -> None:
    def off(array: np.ndarray) -> np.ndarray:
        by_expert = per_expert(array)
        by_expert[EXPERTS - 1] = np.roll(by_expert[EXPERTS - 1], 7)
        return array

    change(stored(model, DOWN, "int8", "int4", "fp8"), off)


def picked_by_another(model: ir.Model) -> None:
    """The second layer's stack by the first layer's choice."""
    first, second = (
        [site for site in quantized_ops(model.graph) if f"layers.{n}.mlp.experts.down" in site.weights[0]]
        for n in (0, 1)
    )
    values = {value.name: value for node in model.graph for value in node.outputs}
    values[second[0].experts].replace_all_uses_with(values[first[0].experts])


def choose_worst(model: ir.Model) -> None:
    """The experts that a router likes least."""
    next(node for node in model.graph if node.op_type == "TopK").attributes["largest"] = ir.AttrInt64("largest", 0)


DAMAGE: dict[str, Damage] = {
    "a scale of the first expert": scale_of_one_off(0),
    "a scale of the last expert": scale_of_one_off(EXPERTS - 1),
    "two experts swapped": two_swapped,
    "values of one expert": values_of_one_off,
    "picked by another layer's choice": picked_by_another,
    "the experts that are liked least": choose_worst,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_one_wrong_expert_fails(form: Form, damage: str, make: Make) -> None:
    with pytest.raises(ProofError):
        make(form).prove(DAMAGE[damage])
