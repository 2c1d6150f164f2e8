"""`MatMul(x, Transpose(weight))` to `com.microsoft::FusedMatMul(x, weight, transB=1)`.

A linear layer stores its weight as `[out, in]`. Multiplying by it as stored needs no transposed copy in the bundle, and
a tied embedding stays one tensor. On the CPU provider both forms are packed at load and run equally fast.
"""

from __future__ import annotations

import onnx_ir as ir


def fuse_transpose_into_matmul(model: ir.Model) -> int:
    """Returns the number of fused layers. A transpose that others use too stays for them."""
    fused = 0
    for node in list(model.graph):
        if node.op_type != "MatMul" or node.domain or node.inputs[0] is None or node.inputs[1] is None:
            continue
        transpose = node.inputs[1].producer()
        if transpose is None or transpose.op_type != "Transpose":
            continue
        weight = transpose.inputs[0]
        if weight is None or not weight.is_initializer() or list(transpose.attributes["perm"].as_ints()) != [1, 0]:
            continue
        matmul = ir.node("FusedMatMul", [node.inputs[0], weight], {"transB": 1}, domain="com.microsoft", name=node.name)
        output = matmul.outputs[0]
        output.name, output.type, output.shape = node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], [matmul], node.outputs, matmul.outputs)
        if not transpose.outputs[0].uses() and not transpose.outputs[0].is_graph_output():
            model.graph.remove(transpose, safe=True)
        fused += 1
    return fused
