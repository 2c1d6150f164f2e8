"""Lengths of `GroupQueryAttention` in a form that CUDA graphs can hold.

ONNX Runtime's CUDA kernel reads `total_sequence_length` on the host, to choose among kernels and to size scratch
memory. As traced it is computed from `position`, which lives on the device: a copy back in every pass, which no CUDA
graph takes. The capacity, a constant, serves every pass. How many rows count is `seqlens_k`, which the kernel reads on
the device; as traced it takes the number of tokens from the host. The place of the last token says the same. See
docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

SEQLENS_K, TOTAL_SEQUENCE_LENGTH = 5, 6  # inputs of GroupQueryAttention
PAST_KEY = 3
END = np.iinfo(np.int64).max


def keep_lengths_on_device(model: ir.Model) -> int:
    """Returns the number of attention nodes that were given other lengths; what only made the old ones goes.

    Changes no result on any provider: inputs, outputs and weights stay as they are.
    """
    traced = [
        node
        for node in model.graph
        if node.op_type == "GroupQueryAttention" and not _is_constant(node.inputs[TOTAL_SEQUENCE_LENGTH])
    ]
    if not traced:
        return 0
    inputs = {value.name: value for value in model.graph.inputs}
    tape = ir.tape.Tape()

    def constant(name: str, value: int | list[int], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        return tape.initializer(ir.tensor(value, dtype=dtype, name=f"lengths.{name}"))

    width = tape.op("Squeeze", [tape.op("Shape", [inputs["tokens"]], {"start": 1, "end": 2})])
    rows = tape.op("Range", [constant("zero", 0), width, constant("one", 1)])
    places = tape.op("Add", [inputs["position"], rows])
    # [1], of the new token that is last
    last = tape.op("Slice", [places, constant("last", [-1]), constant("end", [END])])
    seqlens_k = tape.op("Cast", [last], {"to": ir.DataType.INT32})
    past = traced[0].inputs[PAST_KEY]
    assert past is not None
    assert past.shape is not None, "a cache is an input of the graph, and its shape static"
    capacity = constant("capacity", past.shape.numpy()[2], ir.DataType.INT32)
    for value in tape.initializers:
        model.graph.register_initializer(value)
    model.graph.insert_before(model.graph[0], tape.nodes)
    for node in traced:
        node.replace_input_with(SEQLENS_K, seqlens_k)
        node.replace_input_with(TOTAL_SEQUENCE_LENGTH, capacity)
    common_passes.RemoveUnusedNodesPass()(model)
    return len(traced)


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer()
