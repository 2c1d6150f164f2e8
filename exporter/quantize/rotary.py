"""The rotary embedding into the attention operator, which turns queries and keys by tables of cosines and sines.

Su et al. 2021 (arXiv 2104.09864), as transformers writes it: `x * cos + turned(x) * sin` with `turned(x) = [-x2, x1]`
over the halves of a head. That is about twenty small operators a layer, whose calls cost more than their arithmetic.

Queries, keys and values that one product gives go to the operator as they come, without being split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from .linears import constant

ATTENTION = "GroupQueryAttention"


@dataclass(frozen=True)
class Places:
    """Where an operator has its inputs: keys, with the values next; cosines, with the sines next."""

    keys: int
    cosines: int


# ONNX Runtime's operator, and that of kernels/.
PLACES = {("com.microsoft", ATTENTION): Places(1, 7)} | {
    ("specexport", name): Places(4, 6) for name in ("Attention", "AttentionHalf")
}
# A table's halves must be equal: in fp32, of numbers between -1 and 1 times the embedding's scaling.
EQUAL = 1e-6
# Of a head's width: what the kernel asks for.
MULTIPLE = 16

Table = NDArray[np.float32]


@dataclass(frozen=True)
class Rotated:
    """view: `[1, T, H, D]`, the heads before they are turned. cos, sin: what they are turned by, `[1, T, D]`."""

    view: ir.Value
    cos: ir.Value
    sin: ir.Value


def absorb_rotary(model: ir.Model, capacity: int) -> int:
    """Returns the number of attention layers that turn by themselves now. capacity: rows of the tables.

    A layer stays as it is whose queries and keys are turned otherwise: in part, by pairs of neighbours, or not at all;
    or whose heads have a width that the operator's kernel does not turn.
    """
    graph = model.graph
    tables: dict[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value] | None] = {}
    changed = 0
    for node in list(graph):
        places = PLACES.get((node.domain, node.op_type))
        if places is None or any(node.inputs[places.cosines : places.cosines + 2]):
            continue
        query, key = _rotated(node.inputs[0]), _rotated(node.inputs[places.keys])
        if query is None or key is None or (query.cos, query.sin) != (key.cos, key.sin):
            continue
        pair = (query.cos, query.sin)
        if pair not in tables:
            tables[pair] = _tables(model, *pair, capacity, len(tables))
        made = tables[pair]
        if made is None:
            continue
        for index, rotated in ((0, query), (places.keys, key)):
            node.replace_input_with(index, _flat(graph, node, rotated.view))
        node.resize_inputs(max(len(node.inputs), places.cosines + 2))
        for index, table in enumerate(made, start=places.cosines):
            node.replace_input_with(index, table)
        if node.op_type == ATTENTION:
            node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
        changed += 1
    return changed


def _rotated(value: ir.Value | None) -> Rotated | None:
    """Of `Reshape(Transpose(x * cos + Concat(-x2, x1) * sin))`, where `x = Transpose(view)`."""
    add = _producer(_through(_through(value, "Reshape"), "Transpose"), "Add")
    for first, second in ((0, 1), (1, 0)) if add is not None else ():
        assert add is not None
        plain, crossed = _producer(add.inputs[first], "Mul"), _producer(add.inputs[second], "Mul")
        if plain is None or crossed is None:
            continue
        heads = plain.inputs[0]
        cos, sin = _through(plain.inputs[1], "Unsqueeze"), _through(crossed.inputs[1], "Unsqueeze")
        view = _through(heads, "Transpose")
        if (
            heads is not None
            and view is not None
            and cos is not None
            and sin is not None
            and _turned(crossed.inputs[0], heads)
        ):
            return Rotated(view, cos, sin)
    return None


def _turned(value: ir.Value | None, heads: ir.Value) -> bool:
    """Whether the value is `[-x2, x1]`, of the two halves of each head."""
    halves = _producer(value, "Concat")
    if halves is None or len(halves.inputs) != 2:
        return False
    negated = _through(halves.inputs[0], "Neg")
    first, second = _producer(halves.inputs[1], "Slice"), _producer(negated, "Slice")
    if first is None or second is None or first.inputs[0] is not heads or second.inputs[0] is not heads:
        return False
    (start, middle), (other, end) = _bounds(first), _bounds(second)
    return start == 0 and middle is not None and middle == other and (end or 0) >= 2 * middle


def _tables(
    model: ir.Model, cos: ir.Value, sin: ir.Value, capacity: int, number: int
) -> tuple[ir.Value, ir.Value] | None:
    """`cos` and `sin` by position, `[capacity, D / 2]` each; None where a head's halves are turned by other angles."""
    evaluated = evaluate(model, (cos, sin), capacity)
    values = []
    for name, table in zip(("cos", "sin"), evaluated, strict=True):
        half = table.shape[-1] // 2
        table = table.reshape(capacity, -1)
        if table.shape[1] % MULTIPLE or not np.allclose(table[:, :half], table[:, half:], rtol=0, atol=EQUAL):
            return None
        name = f"rotary.{number}.{name}"
        values.append(constant(model.graph, name, np.ascontiguousarray(table[:, :half])))
    return values[0], values[1]


def evaluate(model: ir.Model, wanted: tuple[ir.Value, ...], width: int, position: int = 0) -> list[Table]:
    """What the values are in a pass of `width` tokens: they depend on the position and the number of tokens only."""
    graph = model.graph
    needed: set[ir.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in needed:
            needed.add(node)
            pending += [value for value in node.inputs if value is not None]
    nodes = [node for node in graph if node in needed]
    sources = {value for node in nodes for value in node.inputs if value is not None and value.producer() is None}
    feeds = {
        "tokens": np.zeros((1, width), np.int64),
        "position": np.array([position]),
        "depth": np.arange(width),  # of a graph that takes trees, for a chain
    }
    inputs = [value for value in graph.inputs if value in sources]
    assert all(value.name in feeds for value in inputs), "a rotary embedding that looks at the cache"
    cut = ir.convenience.extract(graph, inputs, list(wanted))
    evaluator = ReferenceEvaluator(ir.to_proto(ir.Model(cut, ir_version=model.ir_version)))
    return list(evaluator.run(None, {value.name: feeds[value.name] for value in inputs if value.name}))


def _flat(graph: ir.Graph, before: ir.Node, view: ir.Value) -> ir.Value:
    """`[1, T, H * D]`, as attention takes its heads."""
    flat = _through(view, "Reshape")
    if flat is not None:
        return flat
    node = ir.node("Reshape", [view, constant(graph, "rotary.flat", np.array([0, 0, -1]))])
    node.outputs[0].type = view.type
    graph.insert_before(before, node)
    return node.outputs[0]


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def _through(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What a node of this type made the value from."""
    node = _producer(value, op_type)
    return node.inputs[0] if node is not None else None


def _bounds(node: ir.Node) -> tuple[int | None, int | None]:
    """Start and end of a Slice of the last axis by steps of one, where they are known."""
    constants = [
        None if value is None or value.const_value is None else value.const_value.numpy() for value in node.inputs[1:]
    ]
    if len(constants) < 3 or any(constant is None or constant.size != 1 for constant in constants):
        return None, None
    start, end, axis, step = (int(constant.item()) for constant in [*constants, np.ones(1)][:4])  # type: ignore[union-attr]
    return (start, end) if axis in (-1, 3) and step == 1 else (None, None)


def pack_attention(model: ir.Model) -> int:
    """Returns the number of attention layers that take one packed input `[1, T, (H + 2 * H_kv) * D]` now.

    Biases that an Add brings to each of the three become one.
    """
    graph = model.graph
    changed = 0
    for node in list(graph):
        places = PLACES.get((node.domain, node.op_type))
        inputs = (0, places.keys, places.keys + 1) if places is not None else ()
        if not inputs or any(node.inputs[index] is None for index in inputs):
            continue
        parts = [_part(node.inputs[index]) for index in inputs]  # type: ignore[arg-type]
        splits = {part.producer() for part, _ in parts}
        split = splits.pop()
        if splits or split is None or split.op_type != "Split" or list(split.outputs) != [part for part, _ in parts]:
            continue
        biases = [bias for _, bias in parts if bias is not None]
        if len(biases) not in (0, 3) or not _only_used(parts, node):
            continue
        merged = split.inputs[0]
        assert merged is not None
        if biases:
            values = np.concatenate([bias.const_value.numpy().reshape(-1) for bias in biases])  # type: ignore[union-attr]
            add = ir.node("Add", [merged, constant(graph, "+".join(bias.name or "" for bias in biases), values)])
            add.outputs[0].type = merged.type
            graph.insert_before(node, add)
            merged = add.outputs[0]
        for index, packed in zip(inputs, (merged, None, None), strict=True):
            node.replace_input_with(index, packed)
        changed += 1
    return changed


def _part(value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The value, or what a stored bias was added to, and that bias. Looks through Reshapes to `[1, T, n]`."""
    node = value.producer()
    if node is not None and node.op_type == "Reshape" and node.inputs[0] is not None:
        return _part(node.inputs[0])
    if node is not None and node.op_type == "Add":
        for one, other in ((0, 1), (1, 0)):
            bias = node.inputs[other]
            if (
                bias is not None
                and bias.is_initializer()
                and bias.const_value is not None
                and node.inputs[one] is not None
            ):
                return node.inputs[one], bias  # type: ignore[return-value]
    return value, None


def _only_used(parts: list[tuple[ir.Value, ir.Value | None]], attention: ir.Node) -> bool:
    """Whether nothing but the attention reads the three."""
    pending = [part for part, _ in parts]
    while pending:
        for use in pending.pop().uses():
            if use.node is attention:
                continue
            if use.node.op_type not in ("Add", "Reshape"):
                return False
            pending += use.node.outputs
    return True
