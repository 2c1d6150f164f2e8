"""A graph in half precision to the same in fp32, for proofs on any host.

ONNX Runtime's CPU provider has hardly any kernels in bf16, and where it lacks one in fp16 it keeps the weights in fp32
as well. QuantizeLinear and DequantizeLinear stay.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

HALF = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
FLOAT = ir.DataType.FLOAT
# Attributes that name the type of a result.
TYPES = ("to", "dtype", "output_dtype")


def widen(model: ir.Model) -> bool:
    """Half precision becomes fp32; returns whether there was any.

    Weights that lie in files stay there as they are, each followed by a Cast. They become inputs with a default, which
    nothing folds: a weight is widened in each pass, and its fp32 form does not outlive its use.
    """
    graph = model.graph
    nodes = list(graph)
    values = [*graph.inputs, *(value for node in nodes for value in node.outputs)]
    changed = [value for value in values if value.dtype in HALF]
    for value in changed:
        value.dtype = FLOAT
    for node in nodes:
        for name, attribute in node.attributes.items():
            if name in TYPES and attribute.type == ir.AttributeType.INT and attribute.as_int() in HALF:
                node.attributes[name] = ir.AttrInt64(name, int(FLOAT))
            elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALF:
                node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
    weights = [value for value in graph.initializers.values() if value.dtype in HALF]
    for value in weights:
        assert value.const_value is not None
        if isinstance(value.const_value, ir.ExternalTensor):
            _cast(graph, value)
        else:
            value.const_value, value.dtype = _widened(value.const_value), FLOAT
    return bool(changed or weights)


def _cast(graph: ir.Graph, weight: ir.Value) -> None:
    """A Cast after the weight; for an embedding, after the rows that are picked from it."""
    uses = list(weight.uses())
    picks = [use for use in uses if use.node.op_type == "Gather" and use.idx == 0]
    for count, use in enumerate(picks):
        rows = use.node.outputs[0]
        rows.type = weight.type
        cast, wide = _cast_of(rows, f"{weight.name}.picked.{count}")
        rows.replace_all_uses_with(wide)
        cast.replace_input_with(0, rows)
        graph.insert_after(use.node, cast)
    if len(picks) < len(uses):
        cast, wide = _cast_of(weight, f"{weight.name}.widened")
        for use in uses:
            if use not in picks:
                use.node.replace_input_with(use.idx, wide)
        # Before all others: of a node's inputs, ONNX Runtime runs first what the file names last, so that a cast
        # is run just before its use. Named any later, casts would be run first, and their results wait together.
        graph.insert_before(graph[0], cast)
    graph.inputs.append(weight)


def _cast_of(value: ir.Value, name: str) -> tuple[ir.Node, ir.Value]:
    cast = ir.node("Cast", [value], {"to": int(FLOAT)}, name=name)
    wide = cast.outputs[0]
    wide.name, wide.type, wide.shape = name, ir.TensorType(FLOAT), value.shape
    return cast, wide


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
