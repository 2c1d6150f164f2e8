"""Softplus spelled out: the same function, and the same bits wherever an element lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from specexport.engines.onnxruntime.cpu import OrtGraph, open_graph
from specexport.exporter.quantize.batch_invariant import spell_softplus_out


def spelled_out(folder: Path) -> OrtGraph:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    node = ir.node("Softplus", [value])
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = "y", value.type, value.shape
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 21})
    model = ir.Model(graph, ir_version=10)
    assert spell_softplus_out(model) == 1
    assert not [node for node in model.graph if node.op_type == "Softplus"]
    ir.save(model, folder / "graph.onnx")
    return open_graph(folder / "graph.onnx")


def test_it_is_the_same_function(tmp_path: Path) -> None:
    run = spelled_out(tmp_path)
    x = np.concatenate([np.linspace(-90, 90, 1801), [-1e4, 1e4, 0.0, -0.0]]).astype(np.float32)
    wanted = np.logaddexp(x.astype(np.float64), 0)
    tiny = np.finfo(np.float32).tiny  # what is below is 0 or not, as the host's kernels have it
    np.testing.assert_allclose(run({"x": x})["y"], wanted, rtol=1e-6, atol=tiny)


def test_an_element_has_the_same_bits_wherever_it_lies(tmp_path: Path) -> None:
    run = spelled_out(tmp_path)
    x = (3 * np.random.default_rng(0).standard_normal(256)).astype(np.float32)
    whole = run({"x": x})["y"]
    for count in range(1, 40):
        for start in range(0, len(x) - count, count):
            part = run({"x": x[start : start + count]})["y"]
            np.testing.assert_array_equal(part, whole[start : start + count])
