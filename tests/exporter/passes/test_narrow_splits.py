from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.cuda_graphs import narrow_splits


def model(sizes: list[int], **how: Any) -> onnx.ModelProto:
    """A split, whose parts are outputs of the graph or read by it."""
    parts = [f"part.{index}" for index in range(len(sizes))]
    inputs = ["x"] if "num_outputs" in how else ["x", "sizes"]
    nodes = [helper.make_node("Split", inputs, parts, axis=2, **how)]
    nodes += [helper.make_node("Neg", [part], [f"minus.{part}"]) for part in parts[1:]]
    outputs = [parts[0], *(f"minus.{part}" for part in parts[1:])]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "T", sum(sizes)])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [] if "num_outputs" in how else [numpy_helper.from_array(np.array(sizes), "sizes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cut(proto: onnx.ModelProto) -> tuple[bool, onnx.ModelProto]:
    intermediate = serde.deserialize_model(proto)
    return narrow_splits(intermediate), serde.serialize_model(intermediate)


def splits(proto: onnx.ModelProto) -> list[int]:
    return [len(node.output) for node in proto.graph.node if node.op_type == "Split"]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [([3, 1, 4, 1, 5], [4, 2]), ([3, 1, 4, 1, 5, 9], [4, 3]), ([2, 7, 1, 8, 2, 8, 1, 8, 2], [4, 4, 3])],
)
def test_more_than_four_parts_are_cut_in_several(sizes: list[int], parts: list[int]) -> None:
    before = model(sizes)
    changed, after = cut(before)
    assert changed
    assert splits(after) == parts
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    x = np.arange(3 * sum(sizes), dtype=np.float32).reshape(1, 3, -1)
    found, expected = (open_session(proto.SerializeToString(), 0).run(None, {"x": x}) for proto in (after, before))
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "proto",
    [model([3, 1, 4, 1]), model([2, 2, 2, 2, 2, 2]), model([2] * 5, num_outputs=5)],
    ids=["four", "of one size", "of one size by number"],
)
def test_what_cuda_graphs_hold_stays(proto: onnx.ModelProto) -> None:
    changed, after = cut(proto)
    assert not changed
    assert splits(after) == splits(proto)
