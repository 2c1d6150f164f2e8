"""Nodes named after the modules of the checkpoint: `model.layers.0.self_attn.q_proj/MatMul`.

Viewers, profilers and TensorRT's errors show these names.
"""

from __future__ import annotations

from ast import literal_eval
from collections import Counter

import onnx_ir as ir

from .weight_names import PREFIX

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
