"""Operators fused into ONNX Runtime's, and norms back into standard ones.

`x + skip` and its norm become `SkipSimplifiedLayerNormalization` where the types allow it. The norm alone may have a
scale of another type than its input, as models in half precision have that scale in fp32; the fused operator has one
type for all of it, and onnxscript's rule does not look.

`MatMul(x, Transpose(weight))` becomes `com.microsoft::FusedMatMul(x, weight, transB=1)`: a linear layer stores its
weight as `[out, in]`, and multiplying by it as stored needs no transposed copy in the bundle, and a tied embedding
stays one tensor. On the CPU provider both forms are packed at load and run equally fast.

`SimplifiedLayerNormalization` goes back to standard operators where nothing was fused into it. ONNX Runtime registered
it in ONNX's domain, where `onnx.checker` knows no such name (issue 7573 of microsoft/onnxruntime), so graphs that hold
it are refused by every tool that checks. At load ONNX Runtime fuses these operators into the same node again. A
Transpose before a norm, as for gemma3's queries and keys, is moved after it: ONNX Runtime would push it in between the
operators, before it looks for norms, and would not find this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern
from onnxscript.rewriter._ir_utils import get_singleton_value
from onnxscript.rewriter.ort_fusions.skip_normalization import SkipRmsNormFusion

from .match import permuted, producer


class SameTypeSkipFusion(SkipRmsNormFusion):  # type: ignore[misc]
    def check(self, op: Any, input: ir.Value, gamma: ir.Value, **others: Any) -> Any:
        if gamma.dtype != input.dtype:
            return pattern.MatchResult().fail(f"{gamma.name} is {gamma.dtype}, its input {input.dtype}", gamma)
        return super().check(op, input=input, gamma=gamma, **others)


RULES = pattern.RewriteRuleSet(
    [
        SameTypeSkipFusion.rule("SkipRmsNormPreBias", has_bias=True, bias_pre_add=True),
        SameTypeSkipFusion.rule("SkipRmsNormBias", has_bias=True),
        SameTypeSkipFusion.rule("SkipRmsNorm"),
    ]
)


def write_roots_out(model: ir.Model) -> int:
    """`Pow(x, -0.5)`, as Gemma 4 writes its norms, becomes `Reciprocal(Sqrt(x))`, which the fusions know."""
    graph = model.graph
    powers = [node for node in graph if node.op_type == "Pow" and get_singleton_value(node.inputs[1]) == -0.5]
    for node in powers:
        root = ir.node("Sqrt", [node.inputs[0]])
        inverse = ir.node("Reciprocal", root.outputs)
        root.outputs[0].type, root.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], [root, inverse], node.outputs, inverse.outputs)
    return len(powers)


def fuse_skip_rms_normalization(model: ir.Model) -> int:
    """Returns the number of fused norms."""
    return int(RULES.apply_to_model(model))


def fuse_transpose_into_matmul(model: ir.Model) -> int:
    """Returns the number of fused layers. A transpose that others use too stays for them."""
    fused = 0
    for node in list(model.graph):
        if node.op_type != "MatMul" or node.domain or node.inputs[0] is None:
            continue
        transpose, weight = producer(node.inputs[1], "Transpose"), permuted(node.inputs[1], [1, 0])
        if transpose is None or weight is None or not weight.is_initializer():
            continue
        matmul = ir.node("FusedMatMul", [node.inputs[0], weight], {"transB": 1}, domain="com.microsoft", name=node.name)
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], [matmul], node.outputs, matmul.outputs)
        if not transpose.outputs[0].uses() and not transpose.outputs[0].is_graph_output():
            model.graph.remove(transpose, safe=True)
        fused += 1
    return fused


def expand_rms_normalization(model: ir.Model) -> int:
    """Returns the number of norms that were written out."""
    norms = [node for node in model.graph if node.op_type == "SimplifiedLayerNormalization" and not node.domain]
    for node in norms:
        _expand(model.graph, node)
    return len(norms)


def _expand(graph: ir.Graph, node: ir.Node) -> None:
    """`x / sqrt(mean(x ** 2) + epsilon) * scale`, over the last axis: the form that ONNX Runtime recognizes."""
    transpose = _transpose_in_front(node)
    x, scale = node.inputs if transpose is None else (transpose.inputs[0], node.inputs[1])
    output, precision = node.outputs[0], ir.DataType(node.attributes.get_int("stash_type", 1))
    assert x is not None
    assert scale is not None
    tape = ir.tape.Tape()

    def constant(name: str, value: object) -> ir.Value:
        return tape.initializer(ir.tensor(np.array(value, precision.numpy()), name=f"{output.name}.{name}"))

    wide = x if x.dtype == precision else tape.op("Cast", [x], {"to": int(precision)})
    axis = tape.initializer(ir.tensor(np.array([-1], np.int64), name=f"{output.name}.axis"))
    mean = tape.op("ReduceMean", [tape.op("Pow", [wide, constant("two", 2)]), axis], {"keepdims": 1})
    rms = tape.op("Sqrt", [tape.op("Add", [mean, constant("epsilon", node.attributes.get_float("epsilon", 1e-5))])])
    normed = tape.op("Div", [wide, rms])
    if scale.dtype is not None and scale.dtype != precision:
        normed = tape.op("Cast", [normed], {"to": int(scale.dtype)})
    result = tape.op("Mul", [normed, scale])
    if transpose is not None:
        result = tape.op("Transpose", [result], {"perm": transpose.attributes["perm"].as_ints()})
    for value in tape.initializers:
        graph.register_initializer(value)
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, [output], [result])


def _transpose_in_front(node: ir.Node) -> ir.Node | None:
    """Of a norm's input alone, and one that leaves the axis of the norm the last."""
    made = producer(node.inputs[0], "Transpose")
    if made is None or len(made.outputs[0].uses()) > 1:
        return None
    perm = list(made.attributes["perm"].as_ints())
    return made if perm[-1] == len(perm) - 1 and not made.outputs[0].is_graph_output() else None
