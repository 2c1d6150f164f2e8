"""The rotary embedding into the attention operator, which turns queries and keys by tables of cosines and sines.

Su et al. 2021 (arXiv 2104.09864), as transformers writes it: `x * cos + turned(x) * sin` with `turned(x) = [-x2, x1]`
over the halves of a head, or of its first part; or over pairs of neighbours. That is about twenty small operators a
layer, whose calls cost more than their arithmetic. A norm of each head may come before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from ...bundle import HIDDEN
from ..passes.match import array, permuted, producer, source, split_sizes
from .linears import constant

ATTENTION, ATTENTION_BIAS = "GroupQueryAttention", 10


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
# Of a head's width: what ONNX Runtime's kernel asks for.
MULTIPLE = 16
# Of a Slice that goes to the end.
END = 2**31 - 1
NORMS = ("SimplifiedLayerNormalization", "LayerNormalization")
LAST = ir.AttrInt64("axis", -1)
# Inputs with a row for each token of the pass, `[1, T]` and `[1, T, H]`: a graph may count its rows by either.
ROWS = ("tokens", HIDDEN)
# Heads and tokens change places.
SWAP = [0, 2, 1, 3]

Table = NDArray[np.float32]


@dataclass(frozen=True)
class Rotated:
    """view: `[1, T, H, D]`, the heads before they are turned. cos, sin: what they are turned by, one row a position.

    half: where the second numbers of pairs begin; 0 for pairs of neighbours, (0, 1), (2, 3), ... turned: how many
    numbers of a head are in pairs, the first ones; 0 for all of them.
    """

    view: ir.Value
    cos: ir.Value
    sin: ir.Value
    half: int
    turned: int

    @property
    def way(self) -> tuple[ir.Value, ir.Value, int, int]:
        return self.cos, self.sin, self.half, self.turned


def absorb_rotary(model: ir.Model, capacity: int) -> int:
    """Returns the number of attention layers that turn by themselves now. capacity: rows of the tables.

    A layer stays as it is whose queries and keys are turned otherwise or not at all; and on ONNX Runtime's operator in
    part, by pairs of neighbours, with heads of a width that its kernel does not turn, or as rows of trees, whose angles
    are not those of their places in the cache.
    """
    graph = model.graph
    tables: dict[tuple[ir.Value, ir.Value, int, int], tuple[ir.Value, ir.Value] | None] = {}
    changed = 0
    for node in list(graph):
        places = PLACES.get((node.domain, node.op_type))
        if places is None or any(node.inputs[places.cosines : places.cosines + 2]):
            continue
        reads = node.attributes.get_int("reads", 0)  # the keys of another layer, which that one turned
        query = _rotated(node.inputs[0])
        key = query if reads else _rotated(node.inputs[places.keys])
        if query is None or key is None or query.way != key.way:
            continue
        bias = any(node.inputs[ATTENTION_BIAS:][:1])  # which says what rows see each other, as those of trees do
        if node.op_type == ATTENTION and (not query.half or query.turned or bias):
            continue
        if query.way not in tables:
            tables[query.way] = _tables(
                model, query, capacity, len(tables), MULTIPLE if node.op_type == ATTENTION else 2
            )
        made = tables[query.way]
        if made is None:
            continue
        for index, rotated in ((0, query), *(() if reads else ((places.keys, key),))):
            node.replace_input_with(index, _flat(graph, node, rotated.view))
        node.resize_inputs(max(len(node.inputs), places.cosines + 2))
        for index, table in enumerate(made, start=places.cosines):
            node.replace_input_with(index, table)
        if node.op_type == ATTENTION:
            node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
        elif not query.half:
            node.attributes["neighbours"] = ir.AttrInt64("neighbours", 1)
        changed += 1
    return changed


def _rotated(value: ir.Value | None) -> Rotated | None:
    """Of `Reshape(x * cos + turned(x) * sin)`, or with a Transpose between, where `x` are heads or their first part."""
    laid = source(value, "Reshape")
    swapped = permuted(laid, SWAP)
    whole = swapped or laid
    parts = producer(whole, "Concat")
    found = _rotation(whole if parts is None else parts.inputs[0])
    if found is None:
        return None
    heads, cos, sin, half = found
    turned = 0
    if parts is not None:
        split = _first_part(heads, parts.inputs[1]) if len(parts.inputs) == 2 else None
        if split is None:
            return None
        heads, turned = split
    return Rotated(_unswapped(heads) if swapped is not None else heads, cos, sin, half, turned)


def _rotation(value: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value, int] | None:
    """`x`, `cos`, `sin` of `x * cos + turned(x) * sin`, and where the second half of `x` begins, 0 for neighbours."""
    add = producer(value, "Add")
    for first, second in ((0, 1), (1, 0)) if add is not None else ():
        assert add is not None
        plain, crossed = producer(add.inputs[first], "Mul"), producer(add.inputs[second], "Mul")
        if plain is None or crossed is None:
            continue
        heads, cos, sin = plain.inputs[0], plain.inputs[1], crossed.inputs[1]
        if heads is None or cos is None or sin is None:
            continue
        half = _by_halves(crossed.inputs[0], heads)
        if half or _by_neighbours(crossed.inputs[0], heads):
            return heads, _angles(cos), _angles(sin), half
    return None


def _angles(value: ir.Value) -> ir.Value:
    """A row of them for each token, of which a layer may read the kept ones."""
    value = source(value, "Unsqueeze") or value
    rows = source(value, "Slice") if keeps_rows(value.producer()) else None
    return rows or value


def keeps_rows(node: ir.Node | None) -> bool:
    """Whether it is a Slice that a pass's number of tokens decides on (`tracing/kept_rows.py`)."""
    return node is not None and node.op_type == "Slice" and array(node.inputs[1]) is None


def _by_halves(value: ir.Value | None, heads: ir.Value) -> int:
    """Where `x2` begins, if the value is `[-x2, x1]` of the two parts of each head; else 0."""
    halves = producer(value, "Concat")
    if halves is None or len(halves.inputs) != 2:
        return 0
    first, second = _sliced(halves.inputs[1], heads), _sliced(source(halves.inputs[0], "Neg"), heads)
    if first is None or second is None:
        return 0
    middle = first[1]
    return middle if first == (0, middle, 1) and second in ((middle, END, 1), (middle, 2 * middle, 1)) else 0


def _by_neighbours(value: ir.Value | None, heads: ir.Value) -> bool:
    """Whether the value is `[-x1, x0, -x3, x2, ...]` of each head."""
    pairs = producer(source(value, "Reshape"), "Concat")
    if pairs is None or len(pairs.inputs) != 2 or pairs.attributes.get_int("axis", 0) not in (-1, 4):
        return False
    first = _sliced(source(pairs.inputs[1], "Unsqueeze"), heads)
    second = _sliced(source(source(pairs.inputs[0], "Unsqueeze"), "Neg"), heads)
    return first == (0, END, 2) and second == (1, END, 2)


def _first_part(first: ir.Value, rest: ir.Value | None) -> tuple[ir.Value, int] | None:
    """What both are parts of, along the last axis, and where the second begins."""
    heads = source(first, "Slice")
    if heads is not None and (one := _sliced(first, heads)) and (other := _sliced(rest, heads)):
        return (heads, one[1]) if one == (0, other[0], 1) and other[1:] == (END, 1) else None
    split = producer(first, "Split")
    if split is None or [*split.outputs] != [first, rest] or split.attributes.get_int("axis", 0) not in (-1, 3):
        return None
    sizes = split_sizes(split)
    return (split.inputs[0], sizes[0]) if sizes and split.inputs[0] is not None else None


def _unswapped(heads: ir.Value) -> ir.Value:
    """The heads as `[1, T, H, D]`, where they lie as `[1, H, T, D]`. Norms along the last axis take either."""
    view, made_by = permuted(heads, SWAP), heads.producer()
    if view is not None:
        return view
    assert made_by is not None
    assert made_by.graph is not None
    if made_by.op_type in NORMS and made_by.attributes.get_int("axis", -1) in (-1, 3):
        view = permuted(made_by.inputs[0], SWAP)
    if view is not None:
        kept = [value for name, value in made_by.attributes.items() if name != "axis"]
        node = ir.Node(made_by.domain, made_by.op_type, [view, *made_by.inputs[1:]], [*kept, LAST])
    else:
        node = ir.node("Transpose", [heads], {"perm": SWAP})
    node.outputs[0].type = heads.type
    made_by.graph.insert_after(made_by, node)
    return node.outputs[0]


def _tables(
    model: ir.Model, rotated: Rotated, capacity: int, number: int, multiple: int
) -> tuple[ir.Value, ir.Value] | None:
    """`cos` and `sin` by position, `[capacity, turned / 2]` each; None where the numbers of a pair are turned by other
    angles, or these depend on more than positions.
    """
    evaluated = evaluate(model, (rotated.cos, rotated.sin), capacity)
    if evaluated is None:
        return None
    values = []
    for name, table in zip(("cos", "sin"), evaluated, strict=True):
        turned = table.shape[-1]
        if table.size != capacity * turned or turned % multiple:
            return None
        if rotated.turned not in (0, turned) or 2 * rotated.half not in (0, turned):
            return None
        pairs = table.reshape(capacity, 2, -1).swapaxes(1, 2) if rotated.half else table.reshape(capacity, -1, 2)
        if not np.allclose(pairs[..., 0], pairs[..., 1], rtol=0, atol=EQUAL):
            return None
        values.append(constant(model.graph, f"rotary.{number}.{name}", np.ascontiguousarray(pairs[..., 0])))
    return values[0], values[1]


def evaluate(model: ir.Model, wanted: tuple[ir.Value, ...], width: int, position: int = 0) -> list[Table] | None:
    """What the values are in a pass of `width` tokens; None if they depend on more than positions and that number."""
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
        HIDDEN: np.zeros((1, width, 1), np.float32),  # only how many rows there are counts
        "position": np.array([position]),
        "depth": np.arange(width),  # of a graph that takes trees, for a chain
    }
    inputs = [value for value in graph.inputs if value in sources]
    for value in inputs:
        readers = {use.node.op_type for use in value.uses() if use.node in needed}
        if value.name not in feeds or (value.name in ROWS and readers != {"Shape"}):
            return None
    cut = ir.convenience.extract(graph, inputs, list(wanted))
    evaluator = ReferenceEvaluator(ir.to_proto(ir.Model(cut, ir_version=model.ir_version)))
    return list(evaluator.run(None, {value.name: feeds[value.name] for value in inputs if value.name}))


def _flat(graph: ir.Graph, before: ir.Node, view: ir.Value) -> ir.Value:
    """`[1, T, H * D]`, as attention takes its heads."""
    flat = source(view, "Reshape")
    if flat is not None:
        return flat
    node = ir.node("Reshape", [view, constant(graph, "rotary.flat", np.array([0, 0, -1]))])
    node.outputs[0].type = view.type
    graph.insert_before(before, node)
    return node.outputs[0]


def _sliced(value: ir.Value | None, whole: ir.Value) -> tuple[int, int, int] | None:
    """Start, end and step of the value, a Slice of `whole` along the last axis. The end is at most `END`."""
    node = producer(value, "Slice")
    bounds = [array(bound) for bound in node.inputs[1:]] if node is not None and node.inputs[0] is whole else []
    if len(bounds) < 3 or any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, end, axis, step = (int(bound.item()) for bound in [*bounds, np.ones(1)][:4])  # type: ignore[union-attr]
    return (start, min(end, END), step) if axis in (-1, 3) else None
