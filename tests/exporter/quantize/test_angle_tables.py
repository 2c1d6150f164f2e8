"""Angles of a rotary embedding as rows of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from specexport.exporter.passes.clean_up import CLEAN_UP
from specexport.exporter.quantize import batch_invariant as angle_tables
from specexport.exporter.quantize.batch_invariant import look_angles_up
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


@pytest.mark.parametrize("kind", ["part of a head", "delta rule"])
def test_they_are_what_the_graph_computed(kind: str, tmp_path: Path) -> None:
    graph = traced(checkpoint(tmp_path, kind))
    found = list(angle_tables._angles(graph.graph))
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
