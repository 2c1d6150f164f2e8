"""A recipe in a traced graph for TensorRT and TensorRT-RTX: the dialects `onnx` and `rows`.

int8 and fp8 for TensorRT: explicit Q/DQ. What is rounded, and by which scale, is written in the graph.

Weights are stored in the narrow type with one scale an output; where the recipe has a static scale of the inputs, these
are rounded too, by one scale for all of them, and the product is one of narrow numbers; else only the weights are
narrow. Forms and types as TensorRT's guide wants them ("Working with Quantized Types", explicit quantization, strongly
typed networks): symmetric, scales of the type of the values around them.

Weight-only int4 for TensorRT: DequantizeLinear by blocks of inputs, symmetric; products are of the graph's type.

ONNX's DequantizeLinear of opset 21: `[N, K] int4`, two a byte and the first in the low half, scales `[N, K / block]`,
axis 1.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ..weights.recipe import Format, Recipe
from .linears import Linear, constant, linears, matrices
from .picked_weights import quantize_expert_matrices
from .stored_weights import Made, dequantize

ZEROS: dict[Format, np.ndarray] = {"int8": np.zeros((), np.int8), "fp8": np.zeros((), ml_dtypes.float8_e4m3fn)}


def quantize_qdq(model: ir.Model, recipe: Recipe, made: Made) -> int:
    """Returns the number of weights. An embedding that the output shares stays one table."""
    graph = model.graph
    _round_inputs(graph, recipe)
    chosen = list(matrices(graph, recipe, ("int8", "fp8")))
    for weight, transposed, own in chosen:
        assert not own.block, "only int4 has blocks"
        dequantize(graph, weight, transposed, own, made)
    return len(chosen)


def _round_inputs(graph: ir.Graph, recipe: Recipe) -> None:
    """Layers that read one value with one scale share what it is rounded to."""
    rounded: dict[tuple[ir.Value, Format, float], ir.Value] = {}
    for linear in linears(graph):
        own = recipe.weights.get(linear.name)
        if own is None or own.format not in ZEROS or own.input_scale is None:
            continue
        key = (linear.input, own.format, own.input_scale)
        if key not in rounded:
            rounded[key] = _rounded(graph, linear, own.format, own.input_scale)
        linear.node.replace_input_with(0, rounded[key])


def _rounded(graph: ir.Graph, linear: Linear, form: Format, scale: float) -> ir.Value:
    """Inserted before the first layer that reads it."""
    value, dtype = linear.input, linear.weight.dtype
    assert dtype is not None
    step = constant(graph, f"{linear.name}.input_scale", np.array(scale, np.float32).astype(dtype.numpy()))
    zero = constant(graph, f"quantize.zero.{form}", ZEROS[form])
    assert zero.dtype is not None
    narrow = ir.node("QuantizeLinear", [value, step, zero])
    wide = ir.node("DequantizeLinear", [narrow.outputs[0], step, zero])
    narrow.outputs[0].type, wide.outputs[0].type = (ir.TensorType(kind) for kind in (zero.dtype, dtype))
    graph.insert_before(linear.node, [narrow, wide])
    return wide.outputs[0]


def quantize_blocks(model: ir.Model, recipe: Recipe, made: Made) -> int:
    """Returns the number of weights.

    Rows of a table are picked after the DequantizeLinear, and only they are restored.
    """
    chosen = list(matrices(model.graph, recipe, ("int4",)))
    for weight, transposed, own in chosen:
        assert own.input_scale is None, "int4 is for weights only"
        dequantize(model.graph, weight, transposed, own, made)
    return len(chosen)


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
