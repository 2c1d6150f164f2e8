"""Angles of a rotary embedding as rows of tables, and Softplus by operators that give an element the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from specexport.engines.onnxruntime.graphs import OrtGraph, open_graph
from specexport.exporter.passes.clean_up import CLEAN_UP
from specexport.exporter.quantize import batch_invariant
from specexport.exporter.quantize.batch_invariant import look_angles_up, spell_softplus_out
from support.hybrids import save_hybrid
from support.tiny import CONTRACT, LLAMA, save_model, traced


def checkpoint(folder: Path, kind: str) -> Path:
    if kind == "part of a head":
        return save_model(folder, "phi", config=LLAMA | dict(partial_rotary_factor=0.5))
    return save_hybrid(folder, kind)


def angles(model: ir.Model, position: int, width: int) -> list[np.ndarray]:
    """What the first attention's rotation reads, in a pass of so many tokens."""
    evaluator = ReferenceEvaluator(ir.to_proto(model))
    feeds = {"tokens": np.zeros((1, width), np.int64), "position": np.array([position])}
    return list(evaluator.run(None, {value.name: feeds[value.name] for value in model.graph.inputs}))  # type: ignore[arg-type, index]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["part of a head", "delta rule"])
def test_they_are_what_the_graph_computed(kind: str, tmp_path: Path) -> None:
    graph = traced(checkpoint(tmp_path, kind))
    found = list(batch_invariant._angles(graph.graph))
    inputs = [value for value in graph.graph.inputs if value.name in ("tokens", "position")]
    cut = ir.Model(ir.convenience.extract(graph.graph, inputs, found), ir_version=graph.ir_version)
    before = [angles(cut, *place) for place in ((0, 1), (7, 5), (50, 14))]
    assert look_angles_up(graph, CONTRACT.capacity) == len(found) == 2
    CLEAN_UP(graph)
    kinds = [node.op_type for node in graph.graph]
    assert not {"Cos", "Sin"} & set(kinds)
    picked = [node for node in graph.graph if node.op_type == "Gather" and "angles" in (node.inputs[0].name or "")]  # type: ignore[union-attr]
    cut = ir.Model(
        ir.convenience.extract(graph.graph, inputs, [node.outputs[0] for node in picked]), ir_version=graph.ir_version
    )
    for wanted, place in zip(before, ((0, 1), (7, 5), (50, 14)), strict=True):
        for one, other in zip(wanted, angles(cut, *place), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


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
