"""Attention that gives a row the same bits whatever other rows the pass has: never over one row alone.

ONNX Runtime's kernel multiplies a matrix of one row in another order than one of more rows; among two and more, all
orders are the same. A difference of 1e-7 is nothing by itself, but before quantized layers it rounds some values
the other way, and those round more: plain decoding, in passes of one row, would stray from verification. So a single
row is followed by a row of zeros. It is written into the cache where the next pass writes, and no row sees it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .constants import constant
from .rotary import ATTENTION


def attend_over_two_rows(model: ir.Model) -> int:
    """Returns the number of attention layers.

    A pass of one row now writes one more after it: the caches must have room for it.
    """
    graph = model.graph
    layers = [node for node in graph if node.op_type == ATTENTION]
    if not layers:
        return 0
    tokens = next(value for value in graph.inputs if value.name == "tokens")
    width = _placed(graph, layers[0], ir.node("Shape", [tokens], {"start": 1}))
    alone = _placed(graph, layers[0], ir.node("Equal", [width, constant(graph, "exact.one", np.array([1]))]))
    more = _placed(graph, layers[0], ir.node("Cast", [alone], {"to": ir.DataType.INT64}))
    narrow = _placed(graph, layers[0], ir.node("Cast", [alone], {"to": ir.DataType.INT32}))
    zeros = [constant(graph, f"exact.zeros{count}", np.zeros(count, np.int64)) for count in (4, 1)]
    pads = _placed(graph, layers[0], ir.node("Concat", [zeros[0], more, zeros[1]], {"axis": 0}))
    axis = constant(graph, "exact.axis", np.array([1]))
    longer: dict[ir.Value, ir.Value] = {}
    for node in layers:
        last, total = node.inputs[5:7]
        assert last is not None
        assert total is not None
        # the capacity, by `passes/gqa_lengths.py`; were it the length, it would have to grow too
        assert total.is_initializer()
        if last not in longer:
            longer[last] = _placed(graph, node, ir.node("Add", [last, narrow]), last)
        node.replace_input_with(5, longer[last])
        for index in range(3):
            rows = node.inputs[index]
            if rows is not None:
                node.replace_input_with(index, _placed(graph, node, ir.node("Pad", [rows, pads]), rows))
        output = node.outputs[0]
        uses = list(output.uses())
        real = ir.node("Slice", [output, zeros[1], width, axis])
        real.outputs[0].type = output.type
        graph.insert_after(node, real)
        for use in uses:
            use.node.replace_input_with(use.idx, real.outputs[0])
    return len(layers)


def _placed(graph: ir.Graph, before: ir.Node, node: ir.Node, like: ir.Value | None = None) -> ir.Value:
    if like is not None:
        node.outputs[0].type = like.type
    graph.insert_before(before, node)
    return node.outputs[0]
