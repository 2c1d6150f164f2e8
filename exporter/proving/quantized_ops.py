"""Where a graph computes its quantized layers: the values that go in and come out, by the form that their product has.

A `QuantizedOp` says which weights its stored numbers are named after. That is a claim of the rewrite under test:
whether they are those weights, in this order, is what `prove_layers.py` finds out from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ...errors import ProofError
from ..passes.match import producer, source, through

STORED = (".int8", ".int4", ".fp8")
TABLE = "table"


@dataclass(frozen=True)
class QuantizedOp:
    """A product of quantized weights, or a table that rows are picked from.

    form: the operator that computes it, or `TABLE`. weights: as the graph calls them, those of one product one after
    another in its outputs. input: the value that is multiplied, before it is rounded; which rows are picked. output:
    the product, or the rows, with all scales; with the bias where `biased`, else whatever follows adds it. experts: of
    a stack, the value that says which expert each row goes to; else empty.
    """

    form: str
    weights: tuple[str, ...]
    input: str
    output: str
    biased: bool = False
    experts: str = ""


def quantized_ops(graph: ir.Graph) -> list[QuantizedOp]:
    """In the order of the graph."""
    return [op for node in graph if node.op_type in FORMS for op in FORMS[node.op_type](node)]


def _integers(node: ir.Node) -> Iterator[QuantizedOp]:
    """`quantize/for_onnxruntime.py`: QuantizeLinear, MatMulInteger, Cast, Mul by the row's scale and the outputs'."""
    yield from _expert_integers(node)
    stored = _stored(node.inputs[1])
    if stored is None:
        return
    name, weights = stored
    value = _known(through(node.inputs[0], "QuantizeLinear"))
    output = _after(node.outputs[0], "Cast")
    if (row := _by_row(value)) is not None:
        value, scale = row
        output = _after(output, "Mul", scale)
    output = _after(output, "Mul", f"{name}.scales")
    yield QuantizedOp(node.op_type, weights, _name(value), _name(output))


def _expert_integers(node: ir.Node) -> Iterator[QuantizedOp]:
    """`quantize/picked_weights.py`: the same, of weights and scales that are picked for each row."""
    picked = _picked(node.inputs[1])
    stored = _stored(picked[0]) if picked is not None else None
    if picked is None or stored is None:
        return
    name, weights = stored
    row = _by_row(_known(through(through(node.inputs[0], "Unsqueeze"), "QuantizeLinear")))
    if row is None:
        raise ProofError(f"what {name} multiplies is not rounded row by row")
    by_row = _after(_after(_after(node.outputs[0], "Squeeze"), "Cast"), "Mul", row[1])
    output = _after(by_row, "Mul")
    scales = _picked(_factor(output, by_row))
    if scales is None or _name(scales[0]) != f"{name}.scales" or scales[1] is not picked[1]:
        raise ProofError(f"the product of {name} is not multiplied by its scales, picked as its weights are")
    yield QuantizedOp(node.op_type, weights, _name(row[0]), _name(output), experts=_name(picked[1]))


def _expert_matrices(node: ir.Node) -> Iterator[QuantizedOp]:
    """`quantize/for_tensorrt.py`: picked from what a DequantizeLinear restores."""
    picked = _picked(node.inputs[0])
    restored = through(picked[0], "Reshape") if picked is not None else None
    stored = _stored(through(restored, "DequantizeLinear")) if restored is not None else None
    if picked is not None and stored is not None:
        value, output = through(node.inputs[1], "Unsqueeze"), _after(node.outputs[0], "Squeeze")
        yield QuantizedOp("DequantizeLinear", stored[1], _name(value), _name(output), experts=_name(picked[1]))


def _picked(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """What a Gather picks from, and by what."""
    node = producer(value, "Gather")
    return (_known(node.inputs[0]), _known(node.inputs[1])) if node is not None else None


def _factor(product: ir.Value, value: ir.Value) -> ir.Value | None:
    """What a Mul multiplies the value with."""
    node = product.producer()
    assert node is not None
    return node.inputs[node.inputs[0] is value]


def _whole(node: ir.Node) -> Iterator[QuantizedOp]:
    """`MatMulNBits`, and those of `kernels/products.py`, without their norm, turn or gate (`QuantizedGraph.alone`)."""
    stored = _stored(node.inputs[1])
    if stored is not None:
        form = TABLE if node.op_type.startswith("Embedding") else node.op_type
        biased = form != TABLE and len(node.inputs) > 3 and node.inputs[3] is not None
        yield QuantizedOp(form, stored[1], _name(node.inputs[0]), _name(node.outputs[0]), biased)


def _dequantized(node: ir.Node) -> Iterator[QuantizedOp]:
    """`quantize/for_tensorrt.py`: a product with a DequantizeLinear. Its inputs may be rounded."""
    yield from _expert_matrices(node)
    stored = _stored(source(through(node.inputs[1], "Transpose"), "DequantizeLinear"))
    if stored is not None:
        value = through(through(node.inputs[0], "DequantizeLinear"), "QuantizeLinear")
        biased = len(node.inputs) > 2 and node.inputs[2] is not None
        yield QuantizedOp("DequantizeLinear", stored[1], _name(value), _name(node.outputs[0]), biased)


def _picked_rows(node: ir.Node) -> Iterator[QuantizedOp]:
    """`quantize/picked_weights.py`, and in Q/DQ a Gather of a DequantizeLinear."""
    restored = through(node.inputs[0], "DequantizeLinear")
    stored = _stored(restored)
    if stored is None or _is_stack(restored):
        return
    output = node.outputs[0]
    if restored is node.inputs[0] and node.op_type == "Gather":
        output = _scaled(_after(output, "Cast"))
    yield QuantizedOp(TABLE, stored[1], _name(node.inputs[1]), _name(output))


# A new way to compute a quantized product: how to find it here, and what it gives in `layer_arithmetic.py`.
FORMS: Mapping[str, Callable[[ir.Node], Iterator[QuantizedOp]]] = {
    "LinearInt8": _whole,
    "LinearInt4": _whole,
    "MatMulInteger": _integers,
    "MatMulNBits": _whole,
    "MatMul": _dequantized,
    "FusedMatMul": _dequantized,
    "Gemm": _dequantized,
    "EmbeddingInt8": _whole,
    "EmbeddingInt4": _whole,
    "Gather": _picked_rows,
    "GatherBlockQuantized": _picked_rows,
}


def _is_stack(value: ir.Value | None) -> bool:
    """Whether the initializer has weights of several experts, of which none is a table."""
    tensor = value.const_value if value is not None else None
    return tensor is not None and len(tensor.shape) == 3


def _scaled(rows: ir.Value) -> ir.Value:
    """The rows of a table times their scales, which those may have by blocks: then they are parted meanwhile."""
    parted = [use.node.outputs[0] for use in rows.uses() if use.node.op_type == "Reshape"]
    return _after(_after(parted[0], "Mul"), "Reshape") if parted else _after(rows, "Mul")


def _stored(value: ir.Value | None) -> tuple[str, tuple[str, ...]] | None:
    """What an initializer of few bits is called before its format, and the weights in it; None for any other value."""
    value = through(through(value, "Reshape"), "Transpose")
    if value is None or not value.is_initializer() or not _name(value).endswith(STORED):
        return None
    name = _name(value).rpartition(".")[0]
    return name, tuple(name.split("+"))


def _by_row(value: ir.Value) -> tuple[ir.Value, str] | None:
    """`x`, and the name of its rows' largest magnitudes, where the value is `x / ReduceMax(Abs(x))`."""
    division = producer(value, "Div")
    if division is None or source(source(division.inputs[1], "ReduceMax"), "Abs") is not division.inputs[0]:
        return None
    return _known(division.inputs[0]), _name(division.inputs[1])


def _after(value: ir.Value, op_type: str, operand: str | None = None) -> ir.Value:
    """What the one node that reads the value makes of it, with `operand` where it has another."""
    nodes = [use.node for use in value.uses()]
    for node in nodes:
        read = [other.name for other in node.inputs if other is not None]
        if len(nodes) == 1 and node.op_type == op_type and (operand is None or operand in read):
            return node.outputs[0]
    readers = ", ".join(node.op_type for node in nodes) or "nothing"
    wanted = op_type if operand is None else f"{op_type} by {operand}"
    raise ProofError(f"{value.name} of a quantized product is read by {readers}, expected one {wanted}")


def _known(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def _name(value: ir.Value | None) -> str:
    name = _known(value).name
    assert name is not None
    return name
