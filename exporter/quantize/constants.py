"""Initializers that passes add to a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"


def constant(graph: ir.Graph, name: str, values: np.ndarray) -> ir.Value:
    """An initializer; the one that is there if the name is taken."""
    if name not in graph.initializers:
        tensor = ir.tensor(values, name=name)
        graph.register_initializer(ir.val(name, tensor.dtype, ir.Shape(values.shape), const_value=tensor))
    return graph.initializers[name]
