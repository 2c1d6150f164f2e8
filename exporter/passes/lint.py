"""Finds, before compilation, what TensorRT silently accepts but computes wrongly, or cannot build.

What shows only in a network or a plan (decomposable attention, aliases) is checked where those are made, in `engines/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from ...bundle import is_cache
from ...errors import UnsupportedModelError
from ..dialects import Dialect

# Operators of ONNX-TensorRT 10.1's list (opsets 9 to 20), without loops, branches and shapes that depend on data: a
# round runs as one CUDA graph, which has none of them.
OLD_OPSET = 20
OLD_OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Concat Constant
    ConstantOfShape Cos Cosh CumSum DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather
    GatherElements GatherND Gelu Gemm Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max Mean Min Mish Mod Mul Neg
    Not OneHot Or Pad PRelu Pow QuantizeLinear Range Reciprocal ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterElements ScatterND Selu Shape Sigmoid
    Sign Sin Sinh Size Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK
    Transpose Trilu Unsqueeze Where Xor
    """.split()  # noqa: SIM905
)
ATTENTION_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def refuse_traps(model: ir.Model, dialect: Dialect, name: str) -> None:
    """Raises `UnsupportedModelError` for the graph of the model `name` when it has a trap."""
    findings = lint(model, dialect)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise UnsupportedModelError(f"{name} cannot be compiled by TensorRT: {findings[0]}{more}")


def lint(model: ir.Model | Path, dialect: Dialect) -> list[str]:
    """A line for every trap: which operator, by name and layer, and what is wrong with it.

    The dialect `ort` has none.
    """
    if dialect == "ort":
        return []
    graph = (ir.load(model) if isinstance(model, Path) else model).graph
    findings = list(_operators(graph) if dialect == "onnx" else _old_operators(graph))
    for node in graph:
        if node.op_type == "Attention":
            findings += (f"{_place(node)} {trap}" for trap in _attention(node))
        elif node.op_type == "TensorScatter":
            findings += (f"{_place(node)} {trap}" for trap in _scatter(node))
    return findings + list(_caches(graph, dialect))


def _operators(graph: ir.Graph) -> Iterator[str]:
    for node in graph:
        if node.domain:
            yield f"{_place(node)} is not a standard operator; TensorRT needs a plugin for it"


def _old_operators(graph: ir.Graph) -> Iterator[str]:
    opset = graph.opset_imports.get("", 0)
    if not 9 <= opset <= OLD_OPSET:
        yield f"the graph has opset {opset}; TensorRT 10.3 reads 9 to {OLD_OPSET}"
    for node in graph:
        if node.domain or node.op_type not in OLD_OPERATORS:
            yield f"{_place(node)} is an operator that TensorRT 10.3 lacks, or that no CUDA graph can hold"


def _attention(node: ir.Node) -> Iterator[str]:
    given = {name: value for name, value in zip(ATTENTION_INPUTS, node.inputs, strict=False) if value is not None}
    if "nonpad_kv_seqlen" in given:
        yield "has nonpad_kv_seqlen, which TensorRT drops: stale rows would be attended to"
    if node.attributes.get_int("is_causal", 0):
        yield "has is_causal=1, which TensorRT aligns with the upper left: wrong with a cache"
    if node.attributes.get_float("softcap", 0.0):
        yield "has a softcap, which TensorRT's attention lacks"
    mask = given.get("attn_mask")
    if mask is None:
        yield "has no mask, so it attends to rows after the position"
    elif mask.dtype != ir.DataType.BOOL:
        yield f"has a mask of type {mask.dtype}; it must be boolean, otherwise masked rows still contribute"
    if {"past_key", "past_value"} & set(given) or len([value for value in node.outputs if value.name]) > 1:
        yield "has its own past or present; TensorRT supports attention with one output only"
    # Tracing leaves no shapes behind; the number of heads is an attribute only where they are packed in three
    # dimensions.
    ranks = {len(value.shape) for value in list(node.inputs)[:3] if value is not None and value.shape is not None}
    if ranks - {4} or {"q_num_heads", "kv_num_heads"} & set(node.attributes):
        yield "has no dimension for its heads; query, key and value must be [1, heads, rows, head_dim]"


def _scatter(node: ir.Node) -> Iterator[str]:
    cache, result = node.inputs[0], node.outputs[0]
    if node.attributes.get_string("mode", "linear") != "linear":
        yield "writes circularly; TensorRT supports linear cache writes only"
    if node.attributes.get_int("axis", -2) not in (2, -2):
        yield "writes along an axis other than the cache's rows"
    if cache is None or not cache.is_graph_input():
        producer = cache.producer() if cache is not None else None
        chained = producer is not None and producer.op_type == "TensorScatter"
        yield (
            "writes into what another TensorScatter has written"
            if chained
            else "writes into something that is not an input of the graph"
        )
    elif sum(use.node.op_type == "TensorScatter" for use in cache.uses()) > 1:
        yield f"is not the only one that writes into {cache.name}"
    if not result.is_graph_output():
        yield "does not pass its cache to an output of the graph, so it would be a copy"


def _caches(graph: ir.Graph, dialect: Dialect) -> Iterator[str]:
    """Each `past.*` has a `present.*` (or `new.*`) of one type and shape, and caches in `onnx` of one memory."""
    outputs = {value.name: value for value in graph.outputs}
    for past in graph.inputs:
        if not (past.name or "").startswith("past."):
            continue
        assert past.name is not None
        shape, cached = list(past.shape or []), is_cache(past.name)
        if (cached and len(shape) != 4) or not all(isinstance(size, int) for size in shape):
            yield f"{past.name} has the shape {_shown(shape)}; all dimensions must be fixed numbers"
        name = past.name.replace("past", "present" if dialect == "onnx" or not cached else "new", 1)
        written = outputs.get(name)
        if written is None:
            yield f"{past.name} has no output {name}, so what is written into it is lost"
            continue
        rows, expected = list(written.shape or []), shape
        if dialect == "rows" and cached:
            rows, expected = rows[:2] + rows[3:], shape[:2] + shape[3:]
        if rows != expected or written.dtype != past.dtype:
            ours, theirs = f"{written.dtype} {_shown(written.shape)}", f"{past.dtype} {_shown(shape)}"
            yield f"{name} is {ours} and {past.name} {theirs}; they must match"
        node = written.producer()
        in_place = node is not None and node.op_type == "TensorScatter" and node.inputs[0] is past
        if cached and dialect == "onnx" and not in_place:
            yield f"{name} is not {past.name} written in place, so the two cannot share memory"


def _shown(shape: object) -> str:
    return "[" + ", ".join(map(str, shape or [])) + "]"  # type: ignore[call-overload]


def _place(node: ir.Node) -> str:
    layer = _layer(node)
    return f"{node.op_type} {node.name}" + (f" (layer {layer})" if layer else "")


def _layer(node: ir.Node) -> str | None:
    """The number in the name of the cache that the node reads or writes, if there is one near it."""
    near: list[ir.Node] = [node]
    for _ in range(3):  # Attention, Slice, TensorScatter
        values = [value for one in near for value in (*one.inputs, *one.outputs) if value is not None]
        names = (value.name or "" for value in values)
        found = next((name for name in names if name.startswith(("past.", "present.", "new."))), None)
        if found is not None:
            return found.split(".")[1]
        near = [
            producer for one in near for value in one.inputs if value is not None and (producer := value.producer())
        ]
    return None
