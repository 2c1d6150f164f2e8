"""Names in a traced graph, and its cleanup after every change.

Nodes are named after the modules of the checkpoint, as `model.layers.0.self_attn.q_proj/MatMul`: viewers, profilers and
TensorRT's errors show these names.
"""

from __future__ import annotations

from ast import literal_eval
from collections import Counter

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

# `trace` wraps the model in a module that calls it `model`; a recipe names weights as the checkpoint does.
PREFIX = "model."


def parameter_name(weight: ir.Value) -> str:
    return (weight.name or "").removeprefix(PREFIX)


# torch's exporter notes there which modules a node was traced in, outermost first, and last the operator.
SCOPES = "pkg.torch.onnx.name_scopes"


def name_nodes(model: ir.Model) -> None:
    """To be called while the nodes still have the exporter's metadata.

    Those that a rewrite has made without it belong to the module whose weight they read, or else to that of the
    preceding node. What lies outside of all modules is named after its operator alone.
    """
    module = ""
    taken: Counter[str] = Counter()
    for node in model.graph:
        if len(scopes := literal_eval(node.metadata_props.get(SCOPES, "[]"))) > 1:
            module = scopes[-2]
        else:
            read = [value.name or "" for value in node.inputs if value is not None and value.is_initializer()]
            module = next((name.rpartition(".")[0] for name in read if name.startswith(PREFIX)), module)
        inside = module.startswith(PREFIX)
        name = f"{module.removeprefix(PREFIX)}/{node.op_type}" if inside else node.op_type
        taken[name] += 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"


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
