"""A graph in half precision, or with quantized weights, to the same in fp32, for proofs on any host.

ONNX Runtime's CPU provider has hardly any kernels in bf16, and where it lacks one in fp16 it keeps the weights in fp32
as well.

QuantizeLinear and DequantizeLinear as the plain operators that they stand for, in fp32: for proofs on any CPU.

ONNX Runtime fuses the two with products around them, and what it fuses saturates in 16 bits on x86 without VNNI, rounds
activations that the graph does not round (int4), or has no kernel for (fp8). Casts, divisions and products it leaves as
they are.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..quantize.linears import constant

# Of int8.
BOUNDS = {"low": -128.0, "high": 127.0}


def widen_quantized(model: ir.Model) -> bool:
    """Returns whether there was any.

    Weights stay narrow where they are, and become inputs with a default, which nothing folds.
    """
    nodes = [node for node in model.graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in nodes:
        values = node.inputs[0]
        assert values is not None
        if values.is_initializer():
            _restore(model.graph, node, values)
        else:
            _round(model.graph, node)
    return bool(nodes)


def _round(graph: ir.Graph, node: ir.Node) -> None:
    """Of activations, by one scale: the integer (or e4m3) stays a float between the two nodes."""
    value, scale, zero = node.inputs
    assert zero is not None
    if node.op_type == "DequantizeLinear":
        nodes = [ir.node("Mul", [value, scale])]
    elif zero.dtype == ir.DataType.INT8:
        steps = ir.node("Div", [value, scale])
        nearest = ir.node("Round", [steps.outputs[0]])  # half to even, as QuantizeLinear
        bounds = [constant(graph, f"quantized.{name}", np.array(end, np.float32)) for name, end in BOUNDS.items()]
        nodes = [steps, nearest, ir.node("Clip", [nearest.outputs[0], *bounds])]
    else:
        assert zero.dtype is not None
        steps = ir.node("Div", [value, scale])
        narrow = ir.node("Cast", [steps.outputs[0]], {"to": int(zero.dtype), "saturate": 1})
        _type(narrow, zero)
        nodes = [steps, narrow, ir.node("Cast", [narrow.outputs[0]], {"to": int(FLOAT)})]
    _put(graph, node, nodes)


def _restore(graph: ir.Graph, node: ir.Node, values: ir.Value) -> None:
    """Of a weight. Rows that are picked from it, as an embedding's are, are restored when they have been picked.

    Of int8, that is: Gather takes neither fp8 nor int4.
    """
    restored = node.outputs[0]
    for use in list(restored.uses()):
        if (
            values.dtype == ir.DataType.INT8
            and node.attributes.get_int("axis", 1) == 0
            and use.node.op_type == "Gather"
            and use.idx == 0
            and use.node.attributes.get_int("axis", 0) == 0
        ):
            _pick(graph, use.node, node, values)
    if restored.uses():
        assert node.inputs[1] is not None
        _put(graph, node, _products(graph, node, values, node.inputs[1]))
    else:
        graph.remove(node, safe=True)
    if isinstance(values.const_value, ir.ExternalTensor) and values not in graph.inputs:
        graph.inputs.append(values)


def _pick(graph: ir.Graph, gather: ir.Node, node: ir.Node, values: ir.Value) -> None:
    tokens, scale = gather.inputs[1], node.inputs[1]
    assert scale is not None
    rows = ir.node("Gather", [values, tokens])
    scales = ir.node("Gather", [scale, tokens])
    _type(rows, values)
    _type(scales, scale)
    _put(graph, gather, [rows, scales, *_products(graph, node, rows.outputs[0], scales.outputs[0])])


def _products(graph: ir.Graph, node: ir.Node, values: ir.Value, scales: ir.Value) -> list[ir.Node]:
    """`values [..., K]` times `scales [...]`, or `[K]` where they are of the last axis; `[N, K]` also by blocks."""
    wide = ir.node("Cast", [values], {"to": int(FLOAT)})
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    assert axis == 1 or not block, "blocks of outputs"
    if axis == 1 and not block:
        return [wide, ir.node("Mul", [wide.outputs[0], scales])]
    each = ir.node("Unsqueeze", [scales, _shape(graph, [-1])])
    _type(each, scales)
    if not block:
        return [wide, each, ir.node("Mul", [wide.outputs[0], each.outputs[0]])]
    table = node.inputs[0]
    assert table is not None
    assert table.const_value is not None
    inputs = int(table.const_value.shape.numpy()[1])
    blocks = ir.node("Reshape", [wide.outputs[0], _shape(graph, [0, -1, block])])
    product = ir.node("Mul", [blocks.outputs[0], each.outputs[0]])
    flat = ir.node("Reshape", [product.outputs[0], _shape(graph, [0, inputs])])
    return [wide, each, blocks, product, flat]


def _type(node: ir.Node, like: ir.Value) -> None:
    assert like.dtype is not None
    # of its own: one that is shared would change with the other value's
    node.outputs[0].type = ir.TensorType(like.dtype)


def _put(graph: ir.Graph, node: ir.Node, nodes: list[ir.Node]) -> None:
    result, old = nodes[-1].outputs[0], node.outputs[0]
    result.name, result.shape = old.name, old.shape
    old.dtype = FLOAT  # which its successor inherits
    for new in nodes:
        new.outputs[0].dtype = new.outputs[0].dtype or FLOAT
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [old], [result])


def _shape(graph: ir.Graph, lengths: list[int]) -> ir.Value:
    return constant(graph, "quantized.shape." + ".".join(map(str, lengths)), np.array(lengths, np.int64))


HALF = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
FLOAT = ir.DataType.FLOAT
# Attributes that name the type of a result.
TYPES = ("to", "dtype", "output_dtype")


def widen(model: ir.Model) -> bool:
    """Half precision becomes fp32, and rounding to integers or fp8 plain arithmetic; returns whether there was any.

    Weights that lie in files stay there as they are, each followed by a Cast. They become inputs with a default, which
    nothing folds: a weight is widened in each pass, and its fp32 form does not outlive its use.
    """
    rounded = widen_quantized(model)
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
    return bool(rounded or changed or weights)


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
