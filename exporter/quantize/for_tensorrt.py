"""A recipe in a traced graph for TensorRT and TensorRT-RTX: the dialects `onnx` and `rows`."""

from __future__ import annotations

import onnx_ir as ir

from ...calibration.weights.recipe import Recipe
from .expert_stacks import quantize_expert_matrices
from .qdq import quantize_qdq
from .stored_weights import Made
from .weight_only_dq import quantize_blocks

# The first opset (and its version of the format) where DequantizeLinear takes the type; scales in half precision came
# with fp8's.
OPSETS = {
    ir.DataType.FLOAT16: (19, 9),
    ir.DataType.BFLOAT16: (19, 9),
    ir.DataType.FLOAT8E4M3FN: (19, 9),
    ir.DataType.INT4: (21, 10),
}


def quantize_for_tensorrt(model: ir.Model, recipe: Recipe, made: Made | None = None) -> int:
    """Returns the number of weights that are stored in fewer bits now.

    recipe: with scales that the graph's type holds (`scales.in_precision`). made: by weight, what earlier graphs of the
    model got, and what this one adds. After `graphs.optimize`, which would fold the new nodes.
    """
    made = {} if made is None else made
    changed = quantize_qdq(model, recipe, made) + quantize_blocks(model, recipe, made)
    changed += quantize_expert_matrices(model, recipe, made)
    if changed:
        _raise_opset(model)
    return changed


def _raise_opset(model: ir.Model) -> None:
    """No operator of a traced model means anything else in the later opset: they only take more types."""
    graph = model.graph
    types = {
        value.dtype
        for node in graph
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        for value in node.inputs
        if value
    }
    for opset, version in (OPSETS[dtype] for dtype in types if dtype in OPSETS):
        graph.opset_imports[""] = max(graph.opset_imports[""], opset)
        model.ir_version = max(model.ir_version, version)
