"""Decompositions of a traced program for the ONNX exporter of torch, without tracing it again where none is needed.

`torch.onnx.export` decomposes every program by `ExportedProgram.run_decompositions`, which traces it a second time and
takes longer than the first trace. Programs of dense models have nothing to decompose but reshapes, casts and a few
other names of operators; these are replaced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

aten = torch.ops.aten
_CASTS = {aten.to.dtype, aten.to.device, aten.to.dtype_layout}
_NO_OPS = {aten.detach_.default, aten.dropout.default}  # torch.tensor(...) detaches its constant
_SYNONYMS = {aten.__and__.Tensor: aten.bitwise_and.Tensor, aten.__or__.Tensor: aten.bitwise_or.Tensor}
_REPLACED = {aten.reshape.default, *_CASTS, *_NO_OPS, *_SYNONYMS}
_TRANSLATED = {  # composite operators that the ONNX exporter translates as they are
    aten.layer_norm.default,
    aten.linear.default,
    aten.matmul.default,
    aten.pad.default,
    aten.softmax.int,
    aten.sym_size.int,
    aten.type_as.default,
    aten.where.ScalarOther,
}
_SIZES = ("_operator", "math", "torch")  # modules of functions over sizes, such as operator.add and torch.sym_max
_trace_again = ExportedProgram.run_decompositions


@contextmanager
def fewer_traces() -> Iterator[None]:
    """Within it, `run_decompositions` traces again only programs that need more than `_replace` does. Others it changes
    in place.
    """

    def run(
        program: ExportedProgram, decomp_table: Mapping[Any, Callable[..., Any]] | None = None, **options: Any
    ) -> ExportedProgram:
        if decomp_table is None or not all(_is_simple(node, decomp_table) for node in program.graph.nodes):
            program = _trace_again(program, decomp_table, **options)
        else:
            _replace(program)
        return program

    ExportedProgram.run_decompositions = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = _trace_again  # type: ignore[method-assign]


def _is_simple(node: fx.Node, table: Mapping[Any, Any]) -> bool:
    """Whether `_replace` replaces the node, or a decomposition by `table` would leave it as it is."""
    operator, given = node.target, (*node.args, *node.kwargs.values())
    if operator in _CASTS or operator in _NO_OPS:  # not copies, other layouts, and dropout in training
        return not any(one is True or isinstance(one, torch.memory_format) for one in given)
    if operator in _REPLACED or node.op in ("placeholder", "output"):
        return True
    if not isinstance(operator, OpOverload):
        return node.op == "call_function" and getattr(operator, "__module__", None) in _SIZES
    composite = operator._can_decompose() and operator not in _TRANSLATED
    return not (operator._schema.is_mutable or composite or operator in table)


def _replace(program: ExportedProgram) -> None:
    graph = program.graph
    for node in graph.nodes:
        if node.target is aten.reshape.default:
            _view(graph, node)
        elif node.target in _CASTS or node.target in _NO_OPS:
            given, dtype = node.all_input_nodes[0], node.meta["val"].dtype
            if given.meta["val"].dtype == dtype:
                program.graph_signature.replace_all_uses(node.name, given.name)
                node.replace_all_uses_with(given)
                graph.erase_node(node)
            else:
                node.target, node.args, node.kwargs = aten._to_copy.default, (given,), {"dtype": dtype}
        else:
            node.target = _SYNONYMS.get(node.target, node.target)
    program.graph_module.recompile()


def _view(graph: fx.Graph, node: fx.Node) -> None:
    """A reshape is a view of a contiguous copy. In ONNX the copy is an `Identity`, which `optimize` removes."""
    given = node.all_input_nodes[0]
    with graph.inserting_before(node):
        copy = graph.call_function(aten.clone.default, (given,), {"memory_format": torch.contiguous_format})
    copy.meta = given.meta | {"val": given.meta["val"].clone(memory_format=torch.contiguous_format)}
    node.target, node.args = aten.view.default, (copy, *node.args[1:])
