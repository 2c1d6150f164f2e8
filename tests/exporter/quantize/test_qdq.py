"""int8 and fp8 in explicit Q/DQ: what the graph computes, against the same in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.quantize.for_tensorrt import quantize_for_tensorrt
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.recipes import in_precision
from support.small_tied import NAMES, TOKENS, expected, graph, recipe, run, weights, written

FORMATS = {
    "int8": (WeightRecipe("int8", limit=127), ir.DataType.INT8, 127),
    "fp8": (WeightRecipe("fp8"), ir.DataType.FLOAT8E4M3FN, 448),
}


def restored(weight: np.ndarray, form: str) -> np.ndarray:
    """Written anew: one scale for each row, its largest magnitude the type's largest number."""
    limit = FORMATS[form][2]
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(limit)
    steps = weight / scale
    return scale * (np.rint(steps) if form == "int8" else steps.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


def nodes(model: ir.Model, *types: str) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type in types]


@pytest.mark.parametrize("form", FORMATS)
def test_weights_are_restored_by_their_outputs_scales(form: str, tmp_path: Path) -> None:
    path = written(graph(), recipe(FORMATS[form][0]), tmp_path)
    wanted = expected(TOKENS, {name: restored(weight, form) for name, weight in weights().items()})
    np.testing.assert_allclose(run(path, TOKENS), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMATS)
def test_inputs_are_rounded_by_their_layers_scale(form: str, tmp_path: Path) -> None:
    """By scales so large that few steps are left, and one so small that most of what is read is clipped."""
    scales = (
        {"up": 0.05, "gate": 0.05, "down": 0.4, "table": 0.02}
        if form == "int8"
        else {"up": 2e-5, "gate": 0.01, "down": 0.1, "table": 0.003}
    )
    own = {name: WeightRecipe(form, limit=127, input_scale=scale) for name, scale in scales.items()}  # type: ignore[arg-type]

    def rounded(name: str, x: np.ndarray) -> np.ndarray:
        steps = x / np.float32(scales[name])
        if form == "int8":
            return np.clip(np.rint(steps), -128, 127) * np.float32(scales[name])
        return np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scales[name])

    stored = {name: restored(weight, form) for name, weight in weights().items()}
    wanted = expected(TOKENS, stored, rounded)
    assert np.abs(wanted - expected(TOKENS, stored)).max() > 0.1  # it matters
    found = run(written(graph(), Recipe(own), tmp_path), TOKENS)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_tied_table_is_stored_once_and_nothing_wide_is_left(tmp_path: Path) -> None:
    path = written(graph("fp16"), in_precision(recipe(WeightRecipe("int8", limit=127)), "fp16"), tmp_path)
    model = ir.load(path)
    assert {value.name for value in model.graph.initializers.values() if len(value.shape or ()) == 2} == {
        f"{name}.int8" for name in NAMES
    }
    (restoring,) = [node for node in nodes(model, "DequantizeLinear") if node.inputs[0].name == "table.int8"]  # type: ignore[union-attr]
    assert sorted(use.node.op_type for use in restoring.outputs[0].uses()) == ["Gather", "Transpose"]
    assert (tmp_path / "small.weights").stat().st_size == sum(weight.size for weight in weights().values())
    assert {node.inputs[1].dtype for node in nodes(model, "DequantizeLinear")} == {ir.DataType.FLOAT16}  # type: ignore[union-attr]


def test_layers_that_read_one_value_share_what_it_is_rounded_to() -> None:
    model = graph()
    own = WeightRecipe("int8", limit=127, input_scale=0.05)
    assert quantize_for_tensorrt(model, recipe(own), {}) == 4
    assert len(nodes(model, "QuantizeLinear")) == 3  # for up and gate, down, and the output
    model = graph()
    other = WeightRecipe("int8", limit=127, input_scale=0.06)
    quantize_for_tensorrt(model, Recipe({"up": own, "gate": other}), {})
    assert len(nodes(model, "QuantizeLinear")) == 2


@pytest.mark.parametrize(
    ("precision", "own", "opset"),
    [("fp32", "int8", 18), ("fp16", "int8", 19), ("bf16", "int8", 19), ("fp32", "fp8", 19), ("fp32", "int4", 21)],
)
def test_the_opset_is_the_first_that_has_the_types(precision: Any, own: Any, opset: int) -> None:
    model = graph(precision)
    quantize_for_tensorrt(
        model, in_precision(recipe(WeightRecipe(own, block=32 if own == "int4" else 0)), precision), {}
    )
    assert model.graph.opset_imports[""] == opset
    assert model.ir_version == {18: 8, 19: 9, 21: 10}[opset]
    ir.serde.serialize_model(model)
