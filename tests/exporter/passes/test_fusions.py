from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde
from specexport.engines.onnxruntime.graphs import open_session
from specexport.exporter.passes.fusions import (
    expand_rms_normalization,
    fuse_skip_rms_normalization,
    fuse_transpose_into_matmul,
)

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


FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16


def norm_of_a_sum(scale: ir.DataType) -> ir.Model:
    """Gemma's norms in half precision have their scale in fp32."""
    x, skip = (ir.val(name, dtype=FLOAT16, shape=ir.Shape([1, "T", 8])) for name in ("x", "skip"))
    gamma = ir.val("gamma", dtype=scale, shape=ir.Shape([8]))
    tape = ir.tape.Tape()
    total = tape.op("Add", [x, skip])
    total.name, total.type, total.shape = "sum", ir.TensorType(FLOAT16), x.shape
    output = tape.op("SimplifiedLayerNormalization", [total, gamma], {"axis": -1, "epsilon": 1e-6, "stash_type": 1})
    output.name, output.type, output.shape = "y", ir.TensorType(scale), x.shape
    graph = ir.Graph([x, skip, gamma], [output, total], nodes=tape.nodes, opset_imports={"": 24})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(("scale", "fused"), [(FLOAT16, 1), (FLOAT, 0)])
def test_only_norms_of_one_type_are_fused(scale: ir.DataType, fused: int) -> None:
    model = norm_of_a_sum(scale)
    assert fuse_skip_rms_normalization(model) == fused
    kinds = [node.op_type for node in model.graph]
    assert kinds == (["SkipSimplifiedLayerNormalization"] if fused else ["Add", "SimplifiedLayerNormalization"])


EPSILON = 1e-2  # large enough to be seen


def norm(values: ir.DataType, scale: ir.DataType, perm: tuple[int, ...] = (), shared: bool = False) -> ir.Model:
    """The norm of `x`, or of its Transpose, which another node uses too if it is `shared`."""
    x = ir.val("x", dtype=values, shape=ir.Shape([1, 8, 8]))
    gamma = ir.val("gamma", dtype=scale, shape=ir.Shape([8]))
    gamma.const_value = ir.tensor(np.arange(1, 9).astype(scale.numpy()), name="gamma")
    tape = ir.tape.Tape()
    normed = tape.op("Transpose", [x], {"perm": perm}) if perm else x
    normed.type = x.type
    outputs = [tape.op("Neg", [normed])] if shared else []
    attributes = {"axis": -1, "epsilon": EPSILON, "stash_type": 1}
    outputs.insert(0, tape.op("SimplifiedLayerNormalization", [normed, gamma], attributes))
    for name, output in zip("yz", outputs, strict=False):
        output.name, output.type, output.shape = name, ir.TensorType(scale), x.shape
    graph = ir.Graph([x], outputs, nodes=tape.nodes, initializers=[gamma], name="norm", opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def normalized(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float32)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * np.arange(1, 9))


@pytest.mark.parametrize(("values", "scale"), [(FLOAT, FLOAT), (FLOAT16, FLOAT), (FLOAT16, FLOAT16)])
def test_a_norm_is_written_out_in_standard_operators(values: ir.DataType, scale: ir.DataType) -> None:
    model = norm(values, scale)
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered for SimplifiedLayerNormalization"):
        onnx.checker.check_model(ir.to_proto(model))
    assert expand_rms_normalization(model) == 1
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(0).normal(size=(1, 8, 8)).astype(values.numpy())
    (found,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert found.dtype == scale.numpy()
    np.testing.assert_allclose(found, normalized(x), rtol=1e-6 if scale == FLOAT else 2e-3)


@pytest.mark.parametrize(
    ("perm", "shared", "last"),
    [((1, 0, 2), False, "Transpose"), ((1, 0, 2), True, "Mul"), ((0, 2, 1), False, "Mul")],
    ids=["moved behind the norm", "stays for the other node", "stays, as it moves the norm's axis"],
)
def test_a_transpose_in_front(perm: tuple[int, ...], shared: bool, last: str) -> None:
    model = norm(FLOAT, FLOAT, perm, shared)
    expand_rms_normalization(model)
    made = model.graph.outputs[0].producer()
    assert made is not None
    assert made.op_type == last
    x = np.random.default_rng(0).normal(size=(1, 8, 8)).astype(np.float32)
    found = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    np.testing.assert_allclose(found[0], normalized(x.transpose(perm)), rtol=1e-6)
    if shared:
        np.testing.assert_array_equal(found[1], -x.transpose(perm))
