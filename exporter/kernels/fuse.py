"""What surrounds a product and its operator does as well: the norm or the Hadamard turn before, bias and gate after."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..passes.match import array, only_reader, producer, split_sizes
from ..quantize.linears import splits_last_axis
from ..weights.rotation import hadamard
from .layouts import PANEL

DOMAIN = "specexport"
# Inputs of `Linear`.
BIAS, GAIN, SKIP = 3, 4, 5
NORM, SKIP_NORM = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
SILU, GELU_TANH = 1, 2
SMALLEST_TURN, LARGEST_TURN = 16, 4096


def fuse_around_products(model: ir.Model) -> int:
    """Returns the number of things that operators of products do in addition."""
    graph = model.graph
    products = [node for node in graph if node.domain == DOMAIN and node.op_type.startswith("Linear")]
    changes = (_add_bias, _gate, _norm, _turn)
    return sum(change(graph, product) for product in products for change in changes)


def _add_bias(graph: ir.Graph, product: ir.Node) -> bool:
    add = only_reader(product.outputs[0])
    if add is None or add.op_type != "Add" or _input(product, BIAS) is not None:
        return False
    bias = add.inputs[1] if add.inputs[0] is product.outputs[0] else add.inputs[0]
    outputs = product.attributes["num_outputs"].as_int()
    tensor = bias.const_value if bias is not None and bias.is_initializer() else None
    if tensor is None or list(tensor.shape) != [outputs] or tensor.dtype != ir.DataType.FLOAT:
        return False
    _set_input(product, BIAS, bias)
    _take_over(graph, product.outputs[0], add)
    return True


def _gate(graph: ir.Graph, product: ir.Node) -> bool:
    """`activation(first half) * second half`."""
    split = only_reader(product.outputs[0])
    half = product.attributes["num_outputs"].as_int() // 2
    if split is None or split.op_type != "Split" or len(split.outputs) != 2 or half % PANEL:
        return False
    if not splits_last_axis(split) or split_sizes(split) not in (None, [half, half]):
        return False
    gate, up = split.outputs
    found = _activated(gate)
    product_of = only_reader(up)
    if found is None or product_of is None or product_of.op_type != "Mul":
        return False
    kind, activated = found
    if only_reader(activated) is not product_of or up not in product_of.inputs:
        return False
    product.attributes["gate"] = ir.AttrInt64("gate", kind)
    _take_over(graph, product.outputs[0], product_of)
    return True


def _activated(gate: ir.Value) -> tuple[int, ir.Value] | None:
    """`x * Sigmoid(x)`, or `Gelu(x, tanh)`, of a value that nothing else reads."""
    readers = [use.node for use in gate.uses()]
    if len(readers) == 1 and readers[0].op_type == "Gelu":
        by_tanh = readers[0].attributes.get_string("approximate", "none") == "tanh"
        return (GELU_TANH, readers[0].outputs[0]) if by_tanh else None
    sigmoids = [node for node in readers if node.op_type == "Sigmoid"]
    if len(readers) != 2 or len(sigmoids) != 1:
        return None
    multiplied = only_reader(sigmoids[0].outputs[0])
    return (SILU, multiplied.outputs[0]) if multiplied in readers and multiplied.op_type == "Mul" else None


def _norm(graph: ir.Graph, product: ir.Node) -> bool:
    """RMS norms, of a sum where one was fused into the norm, that only this product reads."""
    value = product.inputs[0]
    norm = producer(value, NORM, SKIP_NORM)
    if norm is None or value is None or only_reader(value) is not product:
        return False
    if norm.op_type == NORM:
        x, gain, skip, total = norm.inputs[0], norm.inputs[1], None, None
    elif _input(norm, 3) is None:
        x, skip, gain = norm.inputs[:3]
        total = norm.outputs[3] if len(norm.outputs) > 3 else None
    else:
        return False
    if norm.attributes.get_int("axis", -1) != -1 or _rank(gain) != 1 or any(out.uses() for out in norm.outputs[1:3]):
        return False
    product.replace_input_with(0, x)
    _set_input(product, GAIN, gain)
    if skip is not None:
        _set_input(product, SKIP, skip)
    product.attributes["epsilon"] = ir.AttrFloat32("epsilon", norm.attributes.get_float("epsilon", 1e-5))
    # The sum may be read before the product: where the norm stood is before both.
    graph.remove(product)
    graph.insert_before(norm, product)
    if total is not None and (total.uses() or total.is_graph_output()):
        product.resize_outputs(2)
        new = product.outputs[1]
        new.name, new.type, new.shape = total.name, total.type, total.shape
        ir.convenience.replace_all_uses_with(total, new, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    return True


def _turn(graph: ir.Graph, product: ir.Node) -> bool:
    """`Reshape(MatMul(Reshape(x), H))` with a normalized Hadamard matrix, as `weights/turning.py` is traced."""
    turned = product.inputs[0]
    back = producer(turned, "Reshape")
    if turned is None or back is None or only_reader(turned) is not product:
        return False
    made = producer(back.inputs[0], "MatMul")
    parted = producer(made.inputs[0], "Reshape") if made is not None else None
    size = turn_size(made.inputs[1]) if made is not None else 0
    if parted is None or not size:
        return False
    value, shape = parted.inputs[0], array(back.inputs[1])
    made_by, rank = value.producer() if value is not None else None, shape.size if shape is not None else None
    if made_by is not None and made_by.domain == DOMAIN and _rank(value) in (None, rank):
        product.replace_input_with(0, value)
    else:  # rows of heads, or in one list, maybe
        back.replace_input_with(0, value)
    product.attributes["hadamard"] = ir.AttrInt64("hadamard", size)
    return True


def turn_size(value: ir.Value | None) -> int:
    """Of a Hadamard matrix that the operators turn by; 0 for any other value."""
    tensor = value.const_value if value is not None else None
    size, *other = tensor.shape.numpy() if tensor is not None and len(tensor.shape) == 2 else (0,)
    if tensor is None or other != [size] or not SMALLEST_TURN <= size <= LARGEST_TURN or size & (size - 1):
        return 0
    return size if np.allclose(tensor.numpy(), hadamard(size).numpy(), atol=1e-7) else 0


def _rank(value: ir.Value | None) -> int | None:
    return len(value.shape) if value is not None and value.shape is not None else None


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _set_input(product: ir.Node, index: int, value: ir.Value | None) -> None:
    product.resize_inputs(max(len(product.inputs), index + 1))
    product.replace_input_with(index, value)


def _take_over(graph: ir.Graph, value: ir.Value, last: ir.Node) -> None:
    """The product's `value` is what `last` gave."""
    old = last.outputs[0]
    value.name, value.type, value.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(last, safe=True)
