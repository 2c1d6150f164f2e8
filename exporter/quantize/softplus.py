"""Softplus by operators that give an element the same bits wherever it lies.

ONNX Runtime's kernels of `Softplus` and `Log` compute the last elements of an array in another way than the rest, so
that a row's bits would depend on how many rows a pass has. Those of `Exp` and `Atanh` do not.

    log(1 + exp(x)) = max(x, 0) + log(1 + u),  u = exp(-|x|),  log(1 + u) = 2 atanh(u / (2 + u))

which is also exact for small u, as of a step size of a selective scan, where 1 + u has lost them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .constants import constant


def spell_softplus_out(model: ir.Model) -> int:
    """Returns the number of Softplus nodes that are others now."""
    graph = model.graph
    found = [node for node in graph if node.op_type == "Softplus"]
    for node in found:
        value, old = node.inputs[0], node.outputs[0]
        two = constant(graph, "softplus.two", np.array(2, np.float32))
        size = ir.node("Abs", [value])
        away = ir.node("Neg", [size.outputs[0]])
        power = ir.node("Exp", [away.outputs[0]])
        below = ir.node("Add", [power.outputs[0], two])
        part = ir.node("Div", [power.outputs[0], below.outputs[0]])
        area = ir.node("Atanh", [part.outputs[0]])
        logarithm = ir.node("Mul", [area.outputs[0], two])
        linear = ir.node("Relu", [value])
        result = ir.node("Add", [linear.outputs[0], logarithm.outputs[0]])
        nodes = [size, away, power, below, part, area, logarithm, linear, result]
        for new in nodes:
            new.outputs[0].type, new.outputs[0].shape = old.type, old.shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [old], [result.outputs[0]])
    return len(found)
