from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir import serde
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.fusions import fuse_transpose_into_matmul

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)  # [out, in]
INPUT = np.arange(8, dtype=np.float32).reshape(2, 4)


def model(nodes: list[onnx.NodeProto], outputs: list[str], weight: np.ndarray = WEIGHT) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(weight, "w")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


TRANSPOSE = helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0])
MATMUL = helper.make_node("MatMul", ["x", "wt"], ["y"])


def run(proto: onnx.ModelProto) -> list[np.ndarray]:
    return list(open_session(proto.SerializeToString(), 0).run(None, {"x": INPUT}))  # type: ignore[arg-type]


def fused(proto: onnx.ModelProto) -> tuple[int, onnx.ModelProto]:
    intermediate = serde.deserialize_model(proto)
    count = fuse_transpose_into_matmul(intermediate)
    return count, serde.serialize_model(intermediate)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_a_linear_layer_is_fused() -> None:
    before = model([TRANSPOSE, MATMUL], ["y"])
    count, after = fused(before)
    assert count == 1
    assert operators(after) == ["FusedMatMul"]
    np.testing.assert_array_equal(run(after)[0], run(before)[0])


def test_a_transpose_that_others_use_stays() -> None:
    before = model([TRANSPOSE, MATMUL, helper.make_node("Neg", ["wt"], ["z"])], ["y", "z"])
    count, after = fused(before)
    assert count == 1
    assert sorted(operators(after)) == ["FusedMatMul", "Neg", "Transpose"]
    for ours, theirs in zip(run(after), run(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


UNTRANSPOSED = helper.make_node("Transpose", ["w"], ["wt"], perm=[0, 1])
OTHER = helper.make_node("Relu", ["w"], ["wt"])
OF_AN_INPUT = [
    helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0]),
    helper.make_node("MatMul", ["w", "xt"], ["y"]),
]


@pytest.mark.parametrize(
    ("nodes", "weight"),
    [
        pytest.param([UNTRANSPOSED, MATMUL], WEIGHT.T.copy(), id="no transposition"),
        pytest.param([OTHER, MATMUL], WEIGHT.T.copy(), id="another operator"),
        pytest.param(OF_AN_INPUT, WEIGHT, id="no weight"),
    ],
)
def test_anything_else_stays(nodes: list[onnx.NodeProto], weight: np.ndarray) -> None:
    before = model(nodes, ["y"], weight)
    count, after = fused(before)
    assert count == 0
    assert operators(after) == operators(before)
