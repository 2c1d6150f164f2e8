"""Quantized stacks of experts through TensorRT-RTX on a host without a GPU: they build, and stay narrow in the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.quantize.for_tensorrt import quantize_for_tensorrt
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.recipes import in_precision
from support.rtx_builder import build

EXPERTS, OUTPUTS, INPUTS = 4, 512, 256
KERNELS = 600_000  # whatever the size of the weights
FORMS = {
    "int8": WeightRecipe("int8", limit=127, weight_only=True),
    "int4": WeightRecipe("int4", block=32),
    "fp8": WeightRecipe("fp8", weight_only=True),
}


def graph() -> ir.Model:
    """In fp16, as `ExpertStack` is traced: a token goes to the expert that its id names."""
    rng = np.random.default_rng(0)
    tensors = {
        "model.table": (rng.normal(size=(EXPERTS, INPUTS)) / 16).astype(np.float16),
        "model.experts.weight": (rng.normal(size=(EXPERTS, OUTPUTS, INPUTS)) / 16).astype(np.float16),
        "last": np.array([-1]),
    }
    values = {
        name: ir.val(name, ir.tensor(array).dtype, array.shape, const_value=ir.tensor(array, name=name))
        for name, array in tensors.items()
    }
    tape = ir.tape.Tape()
    tokens = ir.val("tokens", ir.DataType.INT64, (1, "T"))  # type: ignore[arg-type]
    chosen = tape.op("Reshape", [tokens, values["last"]])
    rows = tape.op("Gather", [values["model.table"], chosen])
    picked = tape.op("Gather", [values["model.experts.weight"], chosen])
    product = tape.op("MatMul", [picked, tape.op("Unsqueeze", [rows, values["last"]])])
    output = tape.op("Squeeze", [product, values["last"]])
    output.name, output.dtype = "logits", ir.DataType.FLOAT16
    built = ir.Graph([tokens], [output], nodes=tape.nodes, initializers=list(values.values()), opset_imports={"": 24})
    return ir.Model(built, ir_version=11)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_builds_and_stays_narrow(form: str, tmp_path: Path) -> None:
    model = graph()
    recipe = in_precision(Recipe({"experts.weight": FORMS[form]}), "fp16")
    assert quantize_for_tensorrt(model, recipe) == 1
    path = tmp_path / "experts.onnx"
    ir.save(model, path)
    plan, listener = build(path, "SM89")
    assert plan is not None, listener.errors
    assert plan < path.stat().st_size + KERNELS
    readers = [layer for layer in listener.layers if f"Dimensions: [{EXPERTS * OUTPUTS},{INPUTS}]" in layer]
    assert all("LayerType: kgen" in layer and "Gath" in layer for layer in readers)  # restored as they are picked
    assert len(readers) == (form != "int4")  # whose constants have another shape
