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
_CASTS = {aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.detach_.default}  # the last is of a new constant
_SYNONYMS = {aten.__and__.Tensor: aten.bitwise_and.Tensor, aten.__or__.Tensor: aten.bitwise_or.Tensor}
_REPLACED = {aten.reshape.default, *_CASTS, *_SYNONYMS}
_trace_again = ExportedProgram.run_decompositions


@contextmanager
def fewer_traces() -> Iterator[None]:
    """Within it, `run_decompositions` traces only programs with operators that `_replace` does not know."""

    def run(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]] | None = None, **how: Any) -> Any:
        if table is None or not all(_is_simple(node, table) for node in program.graph.nodes):
            return _trace_again(program, table, **how)
        _replace(program)
        return program

    ExportedProgram.run_decompositions = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = _trace_again  # type: ignore[method-assign]


def _is_simple(node: fx.Node, table: Mapping[Any, Any]) -> bool:
    """Whether `_replace` replaces the node, or a decomposition by `table` would leave it as it is.

    The table lacks operators that the ONNX exporter translates, and composite ones that return a view of their input.
    """
    operator = node.target
    if operator in _REPLACED or node.op in ("placeholder", "output"):
        return True
    if not isinstance(operator, OpOverload):
        return node.op == "call_function" and not isinstance(operator, torch._ops.HigherOrderOperator)
    returns_view = any(value.alias_info is not None for value in operator._schema.returns)
    composite_view = operator._can_decompose() and returns_view
    return not (operator._schema.is_mutable or composite_view or operator in table)


def _replace(program: ExportedProgram) -> None:
    graph = program.graph
    for node in graph.nodes:
        if node.target is aten.reshape.default:
            _view(graph, node)
        elif node.target in _CASTS:
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
    """A reshape is a view of a contiguous copy; the copy is no operator in ONNX."""
    given = node.all_input_nodes[0]
    with graph.inserting_before(node):
        copy = graph.call_function(aten.clone.default, (given,), {"memory_format": torch.contiguous_format})
    copy.meta = given.meta | {"val": given.meta["val"].clone(memory_format=torch.contiguous_format)}
    node.target, node.args = aten.view.default, (copy, *node.args[1:])
