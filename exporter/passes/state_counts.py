"""Counts of open rows in a form that CUDA graphs can hold: what is computed of them stays on the host.

How many rows of a state count decides shapes: `Slice` and `Pad` read it on the host, on every provider. ONNX Runtime
places arithmetic on the host only where it follows from a shape (`GetCpuPreferredNodes`); of a graph's input alone it
goes to the device, and back to the host in every pass, which no CUDA graph takes. So each count is added to a zero that
comes from the width of the pass, T - T. See docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

import onnx_ir as ir

from ...bundle import COUNTS


def keep_counts_on_host(model: ir.Model) -> bool:
    """Whether the graph takes counts, and now reads them this way.

    Changes no result on any provider: inputs, outputs and weights stay as they are.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    counts = [inputs[name] for name in COUNTS if name in inputs]
    if not counts or all(_is_kept(count) for count in counts):
        return False
    tape = ir.tape.Tape()
    width = tape.op("Shape", [inputs["tokens"]], {"start": 1, "end": 2})
    zero = tape.op("Sub", [width, width])
    for count in counts:
        readers = list(count.uses())
        kept = tape.op("Add", [count, zero])
        for node, place in readers:
            node.replace_input_with(place, kept)
    model.graph.insert_before(model.graph[0], tape.nodes)
    return True


def _is_kept(count: ir.Value) -> bool:
    """Whether nothing reads the count but its sum with what a shape says."""
    return all(_is_zero(other) for node, _ in count.uses() for other in node.inputs if other is not count)


def _is_zero(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and node.op_type == "Sub" and node.inputs[0] is node.inputs[1]
