"""A graph in half precision as one in fp32: nothing narrow is left but the weights, and those stay where they are."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from specexport.engines.onnxruntime.graphs import open_graph
from specexport.exporter.proving.widen import widen

HALF = {"bf16": (ir.DataType.BFLOAT16, ml_dtypes.bfloat16), "fp16": (ir.DataType.FLOAT16, np.float16)}


def graph_of(kind: str, folder: Path) -> ir.Model:
    """y = (x * 0.1 + filled) @ weight @ weight + weight[4], in half precision, with the weight in a file."""
    dtype, numpy_dtype = HALF[kind]
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape([4, 32]))
    rng = np.random.default_rng(0)
    weight = ir.Value(
        name="weight", const_value=ir.tensor(rng.normal(size=(32, 32)).astype(numpy_dtype), name="weight")
    )
    scale = ir.Value(name="scale", const_value=ir.tensor(np.array(0.1).astype(numpy_dtype), name="scale"))
    shape = ir.Value(name="shape", const_value=ir.tensor(np.array([4, 32]), name="shape"))
    tape = ir.tape.Tape()
    narrow = tape.op("Cast", [x], {"to": int(dtype)})
    filled = tape.op("ConstantOfShape", [shape], {"value": ir.tensor(np.array([0.5]).astype(numpy_dtype))})
    y = tape.op("MatMul", [tape.op("Add", [tape.op("Mul", [narrow, scale]), filled]), weight])
    y = tape.op("MatMul", [y, weight])
    y = tape.op(
        "Cast", [tape.op("Add", [y, tape.op("Gather", [weight, tape.op("Shape", [narrow], {"end": 1})])])], {"to": 1}
    )
    y.name, y.dtype = "y", ir.DataType.FLOAT
    for node in tape.nodes:
        for value in node.outputs:
            value.dtype = value.dtype or (ir.DataType.INT64 if node.op_type == "Shape" else dtype)
    graph = ir.Graph([x], [y], nodes=tape.nodes, initializers=[weight, scale, shape], opset_imports={"": 22})
    ir.save(ir.Model(graph, ir_version=10), folder / "narrow.onnx", external_data="weights", size_threshold_bytes=1024)
    return ir.load(folder / "narrow.onnx")


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return open_graph(path)({"x": x})["y"]  # a weight with a default need not be given


@pytest.mark.parametrize("kind", HALF)
def test_the_widened_graph_computes_in_fp32(kind: str, tmp_path: Path) -> None:
    model = graph_of(kind, tmp_path)
    assert widen(model)
    ir.save(model, tmp_path / "wide.onnx")
    x = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
    weight = model.graph.initializers["weight"].const_value.numpy().astype(np.float32)
    scale = np.float32(np.array(0.1).astype(HALF[kind][1]))
    expected = (x * scale + np.float32(0.5)) @ weight @ weight + weight[4]
    np.testing.assert_allclose(run(tmp_path / "wide.onnx", x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", HALF)
def test_nothing_but_weights_in_files_stays_narrow(kind: str, tmp_path: Path) -> None:
    model = graph_of(kind, tmp_path)
    before = (tmp_path / "weights").read_bytes()
    widen(model)
    ir.save(model, tmp_path / "wide.onnx")
    again = ir.load(tmp_path / "wide.onnx").graph
    narrow = {
        value.name for value in again.initializers.values() if value.dtype in {dtype for dtype, _ in HALF.values()}
    }
    assert narrow == {"weight"}
    assert sorted(use.node.op_type for use in again.initializers["weight"].uses()) == ["Cast", "Gather"]
    assert {value.dtype for value in (*again.inputs, *again.outputs) if value.name != "weight"} == {ir.DataType.FLOAT}
    attributes = [attribute for node in again for attribute in node.attributes.values()]
    assert {attribute.as_int() for attribute in attributes if attribute.name == "to"} == {int(ir.DataType.FLOAT)}
    assert {attribute.as_tensor().dtype for attribute in attributes if attribute.name == "value"} == {ir.DataType.FLOAT}
    assert (tmp_path / "weights").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"narrow.onnx", "wide.onnx", "weights"}
