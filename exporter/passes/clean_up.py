"""Cleanup after every change to a graph: nothing unused, no duplicates, unique names."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

CLEAN_UP = ir.passes.Sequential(
    common_passes.RemoveUnusedNodesPass(),
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    common_passes.DeduplicateInitializersPass(),
    common_passes.CommonSubexpressionEliminationPass(),
    common_passes.NameFixPass(),
)


def adopt_constants(model: ir.Model) -> bool:
    """Give the graph the constants that its nodes read and it lacks, each by a name of its own; whether there were any.

    Rewrites name theirs after what they replace: of two with one name, the graph keeps the last, or none.
    """
    graph = model.graph
    changed = False
    known = {value.name for value in graph.inputs} | set(graph.initializers)
    for node in graph:
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if value.is_graph_input() or graph.initializers.get(value.name or "") is value:
                continue
            while value.name in known:
                value.name = f"{value.name}.again"
            known.add(value.name)
            graph.register_initializer(value)
            changed = True
    return changed
