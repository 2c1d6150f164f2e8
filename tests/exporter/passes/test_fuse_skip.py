from __future__ import annotations

import onnx_ir as ir
import pytest
from specexport.exporter.passes.fusions import fuse_skip_rms_normalization

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
