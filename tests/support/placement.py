"""Where ONNX Runtime's CUDA provider puts what, by its rules: see docs/internals/onnxruntime-cuda.md."""

from __future__ import annotations

import onnx_ir as ir

# Inputs that ONNX Runtime's CUDA kernels read on the host.
ON_HOST = {"GroupQueryAttention": {6}, "Range": {0, 1, 2}, "Reshape": {1}, "Expand": {1}, "Slice": {1, 2, 3, 4}}
ON_HOST |= {"Squeeze": {1}, "Unsqueeze": {1}, "TopK": {1}, "Pad": {1, 2, 3}, "Split": {1}, "ConstantOfShape": {0}}
ON_HOST |= {"Tile": {1}}


def copies(model: ir.Model) -> list[str]:
    """Values that ONNX Runtime would copy between host and device."""
    host: set[ir.Value] = set()
    read: dict[ir.Value, set[bool]] = {}  # of the graph's inputs: whether on the host, on the device or both
    copied = []
    for node in model.graph:
        wanted = ON_HOST.get(node.op_type, set())
        given = [
            (index in wanted, value)
            for index, value in enumerate(node.inputs)
            if value is not None and not value.is_initializer()
        ]
        from_host = any(value in host and not read_there for read_there, value in given)
        if node.op_type == "Shape":
            host.update(node.outputs)
            continue
        if from_host and all(value in host or value.is_graph_input() for _, value in given):
            host.update(node.outputs)
            given = [(True, value) for _, value in given]
        for read_there, value in given:
            if value.is_graph_input():
                read.setdefault(value, set()).add(read_there)
            elif (value in host) is not read_there:
                copied.append(str(value.name))
    return copied + [str(value.name) for value, where in read.items() if len(where) > 1]
