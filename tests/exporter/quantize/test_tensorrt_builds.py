"""Quantized graphs through TensorRT-RTX on a host without a GPU: they build, and their weights stay narrow.

Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from specexport.exporter.quantize.for_tensorrt import quantize_for_tensorrt
from specexport.exporter.weights.recipe import Recipe, WeightRecipe
from support.recipes import in_precision
from support.rtx_builder import build
from support.small_tied import NAMES, recipe, written

WIDTH = 768
KERNELS = 600_000  # whatever the size of the weights
FORMS = {
    "int8": (WeightRecipe("int8", limit=127), "Int8"),
    "int8, inputs too": (WeightRecipe("int8", limit=127, input_scale=0.05), "Int8"),
    "fp8": (WeightRecipe("fp8"), "FP8"),
    "fp8, inputs too": (WeightRecipe("fp8", input_scale=0.01), "FP8"),
    "int4, blocks of 32": (WeightRecipe("int4", block=32), "Int4"),
    "int4, blocks of 128": (WeightRecipe("int4", block=128), "Int4"),
}


def graph() -> ir.Model:
    """In fp16: `x = table[tokens]; logits = ((x @ up^T + x @ gate^T) @ down) @ table^T`, for one to four tokens."""
    rng = np.random.default_rng(0)
    values = {}
    for name in NAMES:
        tensor = ir.tensor((rng.normal(size=(WIDTH, WIDTH)) / 16).astype(np.float16), name=f"model.{name}")
        values[name] = ir.val(f"model.{name}", tensor.dtype, tensor.shape, const_value=tensor)
    tape = ir.tape.Tape()
    tokens = ir.val("tokens", ir.DataType.INT64, (1, "T"))  # type: ignore[arg-type]
    x = tape.op("Gather", [values["table"], tokens])
    sides = [tape.op("MatMul", [x, tape.op("Transpose", [values[name]], {"perm": [1, 0]})]) for name in ("up", "gate")]
    y = tape.op("MatMul", [tape.op("Relu", [tape.op("Add", sides)]), values["down"]])
    logits = tape.op("MatMul", [tape.op("Relu", [y]), tape.op("Transpose", [values["table"]], {"perm": [1, 0]})])
    logits.name, logits.dtype = "logits", ir.DataType.FLOAT16
    built = ir.Graph([tokens], [logits], nodes=tape.nodes, initializers=list(values.values()), opset_imports={"": 24})
    return ir.Model(built, ir_version=11)


def constants(layers: list[str]) -> Iterator[tuple[str, str]]:
    """Of every constant that is as large as a weight: the kind of the layer that reads it, and its type."""
    for layer in layers:
        kind = re.search(r"LayerType: (\w+)", layer)
        listed = re.search(r"Constants: \[(.*?)\], Outputs", layer)
        assert kind
        for shape, dtype in re.findall(r"Dimensions: \[([\d,]*)\].*?Datatype: (\w+)", listed[1] if listed else ""):
            if np.prod([int(length) for length in shape.split(",")]) == WIDTH * WIDTH:
                yield kind[1], dtype


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_read_as_narrow_as_they_are_stored(form: str, tmp_path: Path) -> None:
    """By a product that they are restored in, or multiplied in as they are; a table's rows behind the Gather."""
    own, dtype = FORMS[form]
    path = written(graph(), in_precision(recipe(own), "fp16"), tmp_path)
    plan, listener = build(path, "SM89")
    assert plan is not None, listener.errors
    read = list(constants(listener.layers))
    assert {found for _, found in read} == {dtype}
    products = {"gemm"} if own.input_scale else {"runtime_fusion"}
    # kgen: the kernel that picks rows of the table, which is restored in it.
    assert {kind for kind, _ in read} == products | {"kgen"}
    stored = (tmp_path / "small.weights").stat().st_size
    assert plan < stored + KERNELS


def test_fp8_is_refused_by_name_for_a_gpu_without_it(tmp_path: Path) -> None:
    plan, listener = build(written(graph(), in_precision(recipe(WeightRecipe("fp8")), "fp16"), tmp_path), "SM86")
    assert plan is None
    assert any("fp8" in error for error in listener.errors)


EXPERTS, OUTPUTS, INPUTS = 4, 512, 256
OF_EXPERTS = {
    "int8": WeightRecipe("int8", limit=127, weight_only=True),
    "int4": WeightRecipe("int4", block=32),
    "fp8": WeightRecipe("fp8", weight_only=True),
}


def experts() -> ir.Model:
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


@pytest.mark.parametrize("form", OF_EXPERTS)
def test_a_stack_builds_and_stays_narrow(form: str, tmp_path: Path) -> None:
    model = experts()
    recipe = in_precision(Recipe({"experts.weight": OF_EXPERTS[form]}), "fp16")
    assert quantize_for_tensorrt(model, recipe, {}) == 1
    path = tmp_path / "experts.onnx"
    ir.save(model, path)
    plan, listener = build(path, "SM89")
    assert plan is not None, listener.errors
    assert plan < path.stat().st_size + KERNELS
    readers = [layer for layer in listener.layers if f"Dimensions: [{EXPERTS * OUTPUTS},{INPUTS}]" in layer]
    assert all("LayerType: kgen" in layer and "Gath" in layer for layer in readers)  # restored as they are picked
    assert len(readers) == (form != "int4")  # whose constants have another shape
