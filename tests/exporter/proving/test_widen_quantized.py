"""Q/DQ as plain operators: the same numbers, and weights that stay narrow and where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from specexport.engines.onnxruntime.cpu import open_graph
from specexport.exporter.proving.widen import widen, widen_quantized
from specexport.exporter.weights.recipe import WeightRecipe
from support.recipes import in_precision
from support.small_tied import TOKENS, WIDTH, graph, recipe, written

ZEROS: dict[str, Any] = {"int8": np.zeros((), np.int8), "fp8": np.zeros((), ml_dtypes.float8_e4m3fn)}
# Halves, which are rounded to even; the ends of int8, and what lies beyond the ends of fp8.
HALVES = np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
ENDS = np.array([-1e6, -500, -448, -200, -128.4, -127.6, 126.5, 127.5, 200, 448, 500, 1e6], np.float32)


@pytest.mark.parametrize("kind", ZEROS)
def test_activations_are_rounded_as_the_operators_do(kind: str, tmp_path: Path) -> None:
    x = ir.val("x", ir.DataType.FLOAT, ("n",))  # type: ignore[arg-type]
    constants = []
    for name, array in (("scale", np.array(0.5, np.float32)), ("zero", ZEROS[kind])):
        tensor = ir.tensor(array, name=name)
        constants.append(ir.val(name, tensor.dtype, tensor.shape, const_value=tensor))
    narrow = ir.node("QuantizeLinear", [x, *constants])
    wide = ir.node("DequantizeLinear", [narrow.outputs[0], *constants])
    narrow.outputs[0].type = constants[1].type
    wide.outputs[0].name, wide.outputs[0].dtype = "y", ir.DataType.FLOAT
    built = ir.Graph([x], wide.outputs, nodes=[narrow, wide], initializers=constants, opset_imports={"": 21})
    model = ir.Model(built, ir_version=10)
    assert widen_quantized(model)
    ir.save(model, tmp_path / "wide.onnx")
    steps = np.concatenate([HALVES, ENDS])
    found = open_graph(tmp_path / "wide.onnx")({"x": steps * np.float32(0.5)})["y"]
    clipped = (
        np.clip(np.rint(steps), -128, 127)
        if kind == "int8"
        else np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    )
    np.testing.assert_array_equal(found, clipped.astype(np.float32) * np.float32(0.5))


@pytest.mark.parametrize(
    "own", [WeightRecipe("int8", limit=127, input_scale=0.05), WeightRecipe("fp8"), WeightRecipe("int4", block=32)]
)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_weights_stay_narrow_and_nothing_else_does(own: WeightRecipe, precision: Any, tmp_path: Path) -> None:
    path = written(graph(precision), in_precision(recipe(own), precision), tmp_path)
    before = (tmp_path / "small.weights").read_bytes()
    model = ir.load(path)
    assert widen(model)
    operators = [node.op_type for node in model.graph]
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(operators)
    for node in model.graph:  # weights and what is picked from them are cast where they are used
        narrow = [
            value
            for value in node.inputs
            if value is not None and value.dtype not in (ir.DataType.FLOAT, ir.DataType.INT64)
        ]
        assert not narrow or node.op_type in ("Cast", "Gather")
    ir.save(model, tmp_path / "wide.onnx")
    values = [value for value in ir.load(tmp_path / "wide.onnx").graph.inputs if value.name.endswith(own.format)]  # type: ignore[union-attr]
    assert len(values) == 4  # inputs with a default, which nothing folds
    assert all(isinstance(value.const_value, ir.ExternalTensor) for value in values)
    assert (tmp_path / "small.weights").read_bytes() == before
    assert open_graph(tmp_path / "wide.onnx")({"tokens": TOKENS})["logits"].shape == (1, 5, WIDTH)
