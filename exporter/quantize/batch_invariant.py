"""Parts of a graph that give a row other bits when other rows run beside it, and what they become.

A difference of 1e-7 is nothing by itself, but before quantized layers it rounds some values the other way, and those
round more: plain decoding, in passes of one row, would stray from verification.

- Attention over one row multiplies in another order than over more; among two and more, all orders are the same. So a
  single row is followed by a row of zeros. It is written into the cache where the next pass writes, and no row sees it.
  (Layers that read the rows of another multiply one row for each query head that shares a key head: several.)
- ONNX Runtime's kernels of `Cos`, `Sin`, `Softplus` and `Log` give the last elements of an array other bits than the
  rest. Cosines and sines of a rotary embedding are looked up by position, and Softplus is written by `Exp` and `Atanh`:

    log(1 + exp(x)) = max(x, 0) + log(1 + u),  u = exp(-|x|),  log(1 + u) = 2 atanh(u / (2 + u))

  which is also exact for small u, as of a step size of a selective scan, where 1 + u has lost them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...bundle import HIDDEN
from .linears import constant
from .rotary import ATTENTION, EQUAL, ROWS, evaluate, keeps_rows


def attend_over_two_rows(model: ir.Model) -> int:
    """Returns the number of attention layers.

    A pass of one row now writes one more after it: the caches must have room for it.
    """
    graph = model.graph
    layers = [node for node in graph if node.op_type == ATTENTION]
    if not layers:
        return 0
    tokens = next(value for value in graph.inputs if value.name == "tokens")
    tape = ir.tape.Tape()
    width = tape.op("Shape", [tokens], {"start": 1})
    alone = tape.op("Equal", [width, constant(graph, "exact.one", np.array([1]))])
    more, narrow = (tape.op("Cast", [alone], {"to": kind}) for kind in (ir.DataType.INT64, ir.DataType.INT32))
    zeros = [constant(graph, f"exact.zeros{count}", np.zeros(count, np.int64)) for count in (4, 1)]
    pads = tape.op("Concat", [zeros[0], more, zeros[1]], {"axis": 0})
    graph.insert_before(layers[0], tape.nodes)
    axis = constant(graph, "exact.axis", np.array([1]))
    longer: dict[ir.Value, ir.Value] = {}
    for node in layers:
        tape = ir.tape.Tape()
        last, total = node.inputs[5:7]
        assert last is not None
        assert total is not None
        # the capacity, by `passes/cuda_graphs.py`; were it the length, it would have to grow too
        assert total.is_initializer()
        if last not in longer:
            longer[last] = tape.op("Add", [last, narrow])
        node.replace_input_with(5, longer[last])
        for index in range(3):
            rows = node.inputs[index]
            if rows is not None:
                node.replace_input_with(index, tape.op("Pad", [rows, pads]))
        graph.insert_before(node, tape.nodes)
        output = node.outputs[0]
        uses = list(output.uses())
        real = ir.node("Slice", [output, zeros[1], width, axis])
        real.outputs[0].type = output.type
        graph.insert_after(node, real)
        for use in uses:
            use.node.replace_input_with(use.idx, real.outputs[0])
    return len(layers)


ANGLES = ("Cos", "Sin")
# A pass within the table, to see whether its rows are what the graph computes there: position, and number of tokens.
ELSEWHERE = (5, 3)


def look_angles_up(model: ir.Model, capacity: int) -> int:
    """Returns the number of values that are rows of a table now. capacity: rows of the tables.

    A value stays as it is that is not made of positions row by row.
    """
    graph = model.graph
    angles = list(_angles(graph))
    if not angles or capacity < sum(ELSEWHERE):
        return 0
    start, count = ELSEWHERE
    whole, part = evaluate(model, tuple(angles), capacity), evaluate(model, tuple(angles), count, start)
    assert whole is not None
    assert part is not None
    places: ir.Value | None = None
    changed = 0
    for number, (value, table, rows) in enumerate(zip(angles, whole, part, strict=True)):
        axes = [axis for axis, length in enumerate(table.shape) if length != rows.shape[axis]]
        if len(axes) != 1:
            continue
        if not np.allclose(table.take(range(start, start + count), axes[0]), rows, rtol=0, atol=EQUAL):
            continue
        places = places or _positions(graph)
        _pick(graph, value, constant(graph, f"angles.{number}", np.asarray(table, np.float32)), places, axes[0])
        changed += 1
    return changed


def _angles(graph: ir.Graph) -> Iterator[ir.Value]:
    """Values that are made of positions and constants alone, of cosines or sines among them, and read by others."""
    placed = {value for value in graph.inputs if value.name in ("position", "depth")}
    counted = {value for value in graph.inputs if value.name in ROWS}
    turned: set[ir.Value] = set()
    for node in graph:
        read = [value for value in node.inputs if value is not None and not value.is_initializer()]
        shape = node.op_type == "Shape" and read[0] in counted
        row_by_row = (shape or placed.issuperset(read)) and not keeps_rows(node)
        if row_by_row and not any(value.is_graph_output() for value in node.outputs):
            placed.update(node.outputs)
            if node.op_type in ANGLES or not turned.isdisjoint(read):
                turned.update(node.outputs)
    for node in graph:
        for value in node.outputs:
            if value in turned and not all(placed.issuperset(use.node.outputs) for use in value.uses()):
                yield value


def _positions(graph: ir.Graph) -> ir.Value:
    """Of the tokens of a pass, `[T]`."""
    inputs, tape = {value.name: value for value in graph.inputs}, ir.tape.Tape()
    rows = inputs.get("depth")  # of a tree
    if rows is None:
        zero, one = (constant(graph, f"angles.{name}", np.array(name == "one", np.int64)) for name in ("zero", "one"))
        given = inputs.get("tokens", inputs.get(HIDDEN))
        count = tape.op("Squeeze", [tape.op("Shape", [given], {"start": 1, "end": 2})])
        rows = tape.op("Range", [zero, count, one])
    places = tape.op("Add", [rows, inputs["position"]])
    graph.insert_before(graph[0], tape.nodes)
    return places


def _pick(graph: ir.Graph, value: ir.Value, table: ir.Value, places: ir.Value, axis: int) -> None:
    made_by = value.producer()
    assert made_by is not None
    picked = ir.node("Gather", [table, places], {"axis": axis})
    picked.outputs[0].type, picked.outputs[0].shape = value.type, value.shape
    graph.insert_after(made_by, picked)
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, picked.outputs[0])


def spell_softplus_out(model: ir.Model) -> int:
    """Returns the number of Softplus nodes that are others now."""
    graph = model.graph
    softplus = [node for node in graph if node.op_type == "Softplus"]
    for node in softplus:
        value, tape = node.inputs[0], ir.tape.Tape()
        two = constant(graph, "softplus.two", np.array(2, np.float32))
        power = tape.op("Exp", [tape.op("Neg", [tape.op("Abs", [value])])])
        area = tape.op("Atanh", [tape.op("Div", [power, tape.op("Add", [power, two])])])
        result = tape.op("Add", [tape.op("Relu", [value]), tape.op("Mul", [area, two])])
        ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, [result])
    return len(softplus)
