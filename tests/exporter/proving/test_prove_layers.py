"""Right graphs pass, whatever their format; one wrong layer does not, however little it moves the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from specexport.bundle import Format, Precision
from specexport.errors import ProofError
from specexport.exporter.dialects import ORT_DIALECTS, Dialect
from specexport.exporter.proving import quantized_graph
from specexport.exporter.proving.layer_arithmetic import ROUNDED, Rounded
from specexport.exporter.proving.prove_layers import prove_layers
from specexport.exporter.proving.quantized_ops import TABLE, QuantizedOp, quantized_ops
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.quantized import (
    Damage,
    Quantized,
    bias_missing,
    block_transposed,
    groups_swapped,
    load,
    scale_off,
    table_off_by_one,
)
from support.tiny import CONTRACT, LLAMA, save_model

CONFIG = LLAMA | dict(hidden_size=128, intermediate_size=160, attention_bias=True, mlp_bias=True, initializer_range=0.1)
FAST: list[tuple[Format, Dialect, Precision]] = [
    ("int8", "ort", "fp32"),
    ("int4", "ort", "fp32"),
    ("int8", "onnx", "fp32"),
    ("fp8", "rows", "fp16"),
    ("int8", "kernels", "fp32"),
    ("int4", "kernels", "fp32"),
]
SLOW: list[tuple[Format, Dialect, Precision]] = [
    ("int8", "rows", "fp16"),
    ("int4", "onnx", "fp16"),
    ("int4", "rows", "fp32"),
    ("fp8", "onnx", "bf16"),
]
FORMS = [*FAST, *(pytest.param(form, marks=pytest.mark.nightly, id="-".join(form)) for form in SLOW)]
# What the last layer adds to its residual, where no norm is fused with that.
LAST = "linear_13"
# Of the second layer: what is wrong there has passed the first.
DOWN, QUERY = "layers.1.mlp.down_proj", "layers.1.self_attn.q_proj"
DAMAGE: dict[str, Damage] = {
    "a scale 10 % off": scale_off(DOWN),
    "groups swapped": groups_swapped(DOWN),
    "a block transposed": block_transposed(QUERY),
    "a bias missing": bias_missing(DOWN),
    "a bias missing in front of attention": bias_missing(QUERY),
    "the table off by one row": table_off_by_one,
}


Make = Callable[[tuple[Format, Dialect, Precision]], Quantized]


def name(form: object) -> str | None:
    return "-".join(form) if isinstance(form, tuple) else None


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    base = tmp_path_factory.mktemp("quantized")
    made: dict[tuple[Format, Dialect, Precision], Quantized] = {}

    def make(form: tuple[Format, Dialect, Precision]) -> Quantized:
        if form not in made:
            checkpoint = save_model(base / "checkpoint", config=CONFIG)
            contract = replace(CONTRACT, precision=form[2])
            model = load(checkpoint, form[2])
            made[form] = Quantized(base / "-".join(form), model, form[0], form[1], contract)
        return made[form]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=name)
def test_a_right_graph_passes(form: tuple[Format, Dialect, Precision], make: Make) -> None:
    proof = make(form).prove()
    tables = form[0] != "fp8"
    assert proof.layers == (10 if form[1] in ORT_DIALECTS else 15 + tables)
    assert proof.layer_error < 1
    assert proof.as_run
    assert proof.exact_error < (1e-4 if form[2] == "fp32" else 5e-3)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("form", FORMS, ids=name)
def test_one_wrong_layer_fails(form: tuple[Format, Dialect, Precision], damage: str, make: Make) -> None:
    if form[0] == "fp8" and "table" in damage:
        pytest.skip("fp8 quantizes no table of its own")
    with pytest.raises(ProofError):
        make(form).prove(DAMAGE[damage])


def reads_another_layer(model: ir.Model) -> None:
    """The second layer's attention output is the first one's."""
    first, second = (
        next(site for site in quantized_ops(model.graph) if f"layers.{layer}.self_attn.o_proj" in site.weights[0])
        for layer in (0, 1)
    )
    values = {value.name: value for node in model.graph for value in node.outputs}
    values[second.input].replace_all_uses_with(values[first.input])


def residual_missing(model: ir.Model) -> None:
    """What is added to the second layer's output is that output again."""
    norms = [node for node in model.graph if node.op_type == "SkipSimplifiedLayerNormalization"]
    adds = [
        node
        for node in model.graph
        if node.op_type == "Add" and LAST in [value.name for value in node.inputs if value is not None]
    ]
    for node in norms[-1:] or adds[-1:]:
        place = int(bool(norms) or (node.inputs[1] is not None and node.inputs[1].name != LAST))
        node.replace_input_with(place, node.inputs[1 - place])
        return
    raise AssertionError("no residual")


def gains_swapped(model: ir.Model) -> None:
    named = model.graph.initializers
    one, other = (named[f"model.model.layers.1.{name}_layernorm.weight"] for name in ("input", "post_attention"))
    one.const_value, other.const_value = other.const_value, one.const_value


@pytest.mark.parametrize("damage", [reads_another_layer, residual_missing, gains_swapped])
@pytest.mark.parametrize("form", [*FAST[:3], *FAST[4:]], ids="-".join)
def test_layers_that_are_put_together_wrongly_fail(
    form: tuple[Format, Dialect, Precision], damage: Damage, make: Make
) -> None:
    with pytest.raises(ProofError, match=r"between the quantized layers"):
        make(form).prove(damage)


def test_a_product_of_an_unknown_form_fails(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored in few bits, and neither the proof nor the recipe knows of it."""
    made, own = make(FAST[0]), quantized_graph.quantized_ops
    (unknown,) = (op for op in own(ir.load(made.path).graph) if DOWN in op.weights[0])
    monkeypatch.setattr(quantized_graph, "quantized_ops", lambda graph: [op for op in own(graph) if op != unknown])
    recipe = Recipe({name: one for name, one in made.subject.recipe.weights.items() if name not in unknown.weights})
    with pytest.raises(ProofError, match=r"down_proj\.weight\.int8 in a way that is not known"):
        prove_layers(replace(made.subject, recipe=recipe), made.dialect, made.path, made.recorded)


def test_a_product_without_one_of_the_layers_that_it_claims_fails(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    own = quantized_graph.quantized_ops

    def one_more(graph: ir.Graph) -> list[QuantizedOp]:
        first, *rest = (op for op in own(graph) if op.form != TABLE)
        return [replace(first, weights=(*first.weights, rest[0].weights[0])), *rest]

    monkeypatch.setattr(quantized_graph, "quantized_ops", one_more)
    with pytest.raises(ProofError, match="outputs"):
        make(FAST[0]).prove()


def test_a_product_that_claims_anothers_weights_fails(make: Make) -> None:
    def renamed(model: ir.Model) -> None:
        for name, value in list(model.graph.initializers.items()):
            if "k_proj" in name:
                value.name = name.replace("q_proj", "?").replace("k_proj", "q_proj").replace("?", "k_proj")

    with pytest.raises(ProofError):
        make(FAST[0]).prove(renamed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lm_head.weight": WeightRecipe("float")}, r"the graph stores lm_head\.weight in few bits"),
        ({"model.norm.weight": WeightRecipe("int8")}, r"model\.norm\.weight is missing among"),
        ({"model.layers.0.self_attn.o_proj.weight": WeightRecipe("int8", limit=127)}, r"layers\.0\.self_attn\.o_proj"),
    ],
)
def test_another_recipe_than_the_graphs_fails(changes: dict[str, WeightRecipe], message: str, make: Make) -> None:
    made = make(FAST[0])
    recipe = Recipe(dict(made.subject.recipe.weights) | changes)
    with pytest.raises(ProofError, match=message):
        prove_layers(replace(made.subject, recipe=recipe), made.dialect, made.path, made.recorded)


def test_a_kernel_that_rounds_in_its_own_way_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def unrounded(own: WeightRecipe, inputs: np.ndarray) -> Iterator[Rounded]:
        yield Rounded(inputs, np.zeros_like(inputs), summed=inputs.shape[1])

    monkeypatch.setitem(ROUNDED, "MatMulNBits", unrounded)
    proof = make(FAST[1]).prove()
    assert not proof.as_run
    assert proof.layer_error < 1
    with pytest.raises(ProofError, match="down_proj in int4 is off by"):
        make(FAST[1]).prove(scale_off(DOWN))
