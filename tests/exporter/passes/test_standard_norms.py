from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from specexport.exporter.passes.fusions import expand_rms_normalization

FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
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
