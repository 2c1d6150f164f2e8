"""Attention that gives a row the same bits whatever runs beside it: never over one row alone.

ONNX Runtime's kernel multiplies a matrix of one row in another order than one of more rows; among two and more, all orders are the
same. A difference of 1e-7 is nothing by itself, but in front of quantized layers it rounds some values the other way, and those
round more: plain decoding, in passes of one row, would stray from verification. So a row of zeros runs along behind the real ones.
It is written into the cache where the next pass writes, and no row sees it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .constants import constant
from .rotary import ATTENTION


def attend_over_two_rows(model: ir.Model) -> int:
    """Returns the number of attention layers, which write one row behind the pass's own now: the caches must have room for it."""
    graph = model.graph
    longer: dict[ir.Value, ir.Value] = {}
    changed = 0
    for node in [node for node in graph if node.op_type == ATTENTION]:
        last = node.inputs[5]
        assert last is not None
        if last not in longer:
            add = ir.node("Add", [last, constant(graph, "exact.one", np.array([1], np.int32))])
            longer[last] = _placed(graph, node, add, last)
        node.replace_input_with(5, longer[last])
        for index in range(3):
            rows = node.inputs[index]
            if rows is not None:
                pad = ir.node("Pad", [rows, constant(graph, "exact.pads", np.array([0, 0, 0, 0, 1, 0]))])
                node.replace_input_with(index, _placed(graph, node, pad, rows))
        output = node.outputs[0]
        uses = list(output.uses())
        ends = [constant(graph, f"exact.{name}", np.array([value])) for name, value in (("start", 0), ("end", -1), ("axis", 1))]
        real = ir.node("Slice", [output, *ends])
        real.outputs[0].type = output.type
        graph.insert_after(node, real)
        for use in uses:
            use.node.replace_input_with(use.idx, real.outputs[0])
        changed += 1
    return changed


def _placed(graph: ir.Graph, before: ir.Node, node: ir.Node, like: ir.Value) -> ir.Value:
    node.outputs[0].type = like.type
    graph.insert_before(before, node)
    return node.outputs[0]
