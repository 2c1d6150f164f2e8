"""Refuses, before compilation, what TensorRT silently accepts but computes wrongly, or cannot build.

Attention and writes into the cache come from `tracing/attention_ops.py` alone, operators from any model. What shows
only in a network or a plan (decomposable attention, aliases) is checked where those are made, in `engines/`.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ...errors import UnsupportedModelError
from ..dialects import ORT_DIALECTS, Dialect

# Operators of ONNX-TensorRT 10.1's list (opsets 9 to 20), without loops, branches and shapes that depend on data: a
# round runs as one CUDA graph, which has none of them. CumSum is a loop before TensorRT 10.8.
OLD_OPSET = 20
OLD_OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Concat Constant
    ConstantOfShape Cos Cosh DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather
    GatherElements GatherND Gelu Gemm Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max Mean Min Mish Mod Mul Neg
    Not OneHot Or Pad PRelu Pow QuantizeLinear Range Reciprocal ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Selu Shape Sigmoid
    Sign Sin Sinh Size Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK
    Transpose Trilu Unsqueeze Where Xor
    """.split()  # noqa: SIM905
)


def refuse_traps(model: ir.Model, dialect: Dialect, name: str) -> None:
    """Raises `UnsupportedModelError` for the graph of the model `name` when it has a trap."""
    findings = lint(model, dialect)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise UnsupportedModelError(f"{name} cannot be compiled by TensorRT: {findings[0]}{more}")


def lint(model: ir.Model, dialect: Dialect) -> list[str]:
    """A line for every trap: which operator, by name, and what is wrong with it. ONNX Runtime's dialects have none."""
    if dialect in ORT_DIALECTS:
        return []
    graph = model.graph
    findings = list(_operators(graph) if dialect == "onnx" else _old_operators(graph))
    for node in graph:
        if node.op_type == "Attention":
            findings += (f"Attention {node.name} {trap}" for trap in _attention(node))
        elif node.op_type == "TensorScatter" and not _in_place(node):
            findings.append(f"TensorScatter {node.name} does not write an input into its output, so it would be a copy")
    return findings


def _operators(graph: ir.Graph) -> Iterator[str]:
    for node in graph:
        if node.domain:
            yield f"{node.op_type} {node.name} is not a standard operator; TensorRT needs a plugin for it"


def _old_operators(graph: ir.Graph) -> Iterator[str]:
    opset = graph.opset_imports.get("", 0)
    if not 9 <= opset <= OLD_OPSET:
        yield f"the graph has opset {opset}; TensorRT 10.3 reads 9 to {OLD_OPSET}"
    for node in graph:
        if node.domain or node.op_type not in OLD_OPERATORS:
            yield (
                f"{node.op_type} {node.name} is an operator that TensorRT 10.3 lacks, or that no CUDA graph can hold"
            )


def _attention(node: ir.Node) -> Iterator[str]:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if node.attributes.get_int("is_causal", 0):
        yield "has is_causal=1, which TensorRT aligns with the upper left: wrong with a cache"
    if mask is None:
        yield "has no mask, so it attends to rows after the position"
    elif mask.dtype != ir.DataType.BOOL:
        yield f"has a mask of type {mask.dtype}; it must be boolean, otherwise masked rows still contribute"
    if any(value is not None for value in node.inputs[4:]):
        yield "has its own past or lengths, which TensorRT drops: stale rows would be attended to"


def _in_place(node: ir.Node) -> bool:
    """Whether TensorRT can give `past.*` and `present.*` one memory."""
    cache, result = node.inputs[0], node.outputs[0]
    names = (cache.name or "", result.name or "") if cache is not None else ("", "")
    written = cache is not None and cache.is_graph_input() and result.is_graph_output()
    return written and names[1] == names[0].replace("past", "present", 1)
