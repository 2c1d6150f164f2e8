"""Cosines and sines of a rotary embedding that attention does not compute itself, looked up by position.

ONNX Runtime's kernels of `Cos` and `Sin` give the last elements of an array other bits than the rest, so that a row's
angles would depend on how many rows a pass has. And there are dozens of small operators around them, as for positions
in three parts (Qwen3.5), of which a text needs one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from .constants import constant
from .rotary import EQUAL, Table, evaluate

ANGLES = ("Cos", "Sin")
# A pass within the table, to see whether its rows are what the graph computes there: position, and number of tokens.
ELSEWHERE = (5, 3)


def look_angles_up(model: ir.Model, capacity: int) -> int:
    """Returns the number of values that are rows of a table now. capacity: rows of the tables.

    A value stays as it is that is not made of positions row by row.
    """
    graph = model.graph
    found = list(_angles(graph))
    if not found or capacity < sum(ELSEWHERE):
        return 0
    start, count = ELSEWHERE
    whole, part = evaluate(model, tuple(found), capacity), evaluate(model, tuple(found), count, start)
    places: ir.Value | None = None
    changed = 0
    for number, (value, table, rows) in enumerate(zip(found, whole, part, strict=True)):
        axes = [axis for axis, length in enumerate(table.shape) if length != rows.shape[axis]]
        if len(axes) != 1 or not _same(table.take(range(start, start + count), axes[0]), rows):
            continue
        places = places or _positions(graph)
        _pick(graph, value, constant(graph, f"angles.{number}", np.asarray(table, np.float32)), places, axes[0])
        changed += 1
    return changed


def _same(found: Table, wanted: Table) -> bool:
    return np.allclose(found, wanted, rtol=0, atol=EQUAL)


def _angles(graph: ir.Graph) -> Iterator[ir.Value]:
    """Values that are made of positions and constants alone, of cosines or sines among them, and read by others."""
    placed = {value for value in graph.inputs if value.name == "position"}
    turned: set[ir.Value] = set()
    for node in graph:
        read = [value for value in node.inputs if value is not None and not value.is_initializer()]
        shape = node.op_type == "Shape" and read[0].name == "tokens"
        if (shape or placed.issuperset(read)) and not any(value.is_graph_output() for value in node.outputs):
            placed.update(node.outputs)
            if node.op_type in ANGLES or not turned.isdisjoint(read):
                turned.update(node.outputs)
    for node in graph:
        for value in node.outputs:
            if value in turned and not all(placed.issuperset(use.node.outputs) for use in value.uses()):
                yield value


def _positions(graph: ir.Graph) -> ir.Value:
    """Of the tokens of a pass, `[T]`."""
    inputs = {value.name: value for value in graph.inputs}
    zero, one = (constant(graph, f"angles.{name}", np.array(name == "one", np.int64)) for name in ("zero", "one"))
    width = ir.node("Shape", [inputs["tokens"]], {"start": 1, "end": 2})
    count = ir.node("Squeeze", [width.outputs[0]])
    rows = ir.node("Range", [zero, count.outputs[0], one])
    places = ir.node("Add", [rows.outputs[0], inputs["position"]])
    graph.insert_before(graph[0], [width, count, rows, places])
    return places.outputs[0]


def _pick(graph: ir.Graph, value: ir.Value, table: ir.Value, places: ir.Value, axis: int) -> None:
    made_by = value.producer()
    assert made_by is not None
    picked = ir.node("Gather", [table, places], {"axis": axis})
    picked.outputs[0].type, picked.outputs[0].shape = value.type, value.shape
    graph.insert_after(made_by, picked)
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, picked.outputs[0])
