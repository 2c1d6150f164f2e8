"""Forms of operators that CUDA graphs can hold; see docs/internals/onnxruntime-cuda.md.

**Lengths of `GroupQueryAttention`.** ONNX Runtime's CUDA kernel reads `total_sequence_length` on the host, to choose
among kernels and to size scratch memory. As traced it is computed from `position`, which lives on the device: a copy
back in every pass, which no CUDA graph takes. The capacity, a constant, serves every pass. How many rows count is
`seqlens_k`, which the kernel reads on the device; as traced it takes the number of tokens from the host. The place of
the last token says the same.

**Splits of few parts.** ONNX Runtime's CUDA kernel for `Split` takes up to four parts of different sizes as arguments.
Of more it copies sizes and addresses from host memory in every run, and a captured copy reads what is there by then.
Parts of one size are no problem, however many.

**Counts of open rows**, of which what is computed stays on the host. How many rows of a state count decides shapes:
`Slice` and `Pad` read it on the host, on every provider. ONNX Runtime places arithmetic on the host only where it
follows from a shape (`GetCpuPreferredNodes`); of a graph's input alone it goes to the device, and back to the host in
every pass, which no CUDA graph takes. So each count is added to a zero that comes from the width of the pass, T - T.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ...bundle import COUNTS, HIDDEN
from .match import producer, split_sizes

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

    of = inputs.get("tokens", inputs.get(HIDDEN))  # a draft that only writes rows reads no tokens
    width = tape.op("Squeeze", [tape.op("Shape", [of], {"start": 1, "end": 2})])
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


MAX_PARTS = 4


def narrow_splits(model: ir.Model) -> bool:
    """Whether a split was cut in several, one after the other. Changes no result."""
    wide = [node for node in model.graph if _is_wide(node)]
    for node in wide:
        _cut(node, model.graph)
    return bool(wide)


def _cut(node: ir.Node, graph: ir.Graph) -> None:
    """The first three parts by themselves, and the rest again."""
    value, sizes, parts = node.inputs[0], split_sizes(node) or [], list(node.outputs)
    axis = node.attributes.get_int("axis", 0)
    tape = ir.tape.Tape()
    made: list[ir.Value] = []
    while len(sizes) > MAX_PARTS:
        now = [*sizes[: MAX_PARTS - 1], sum(sizes[MAX_PARTS - 1 :])]
        *first, value = _split(tape, value, now, axis, parts[len(made)].name)
        made += first
        sizes = sizes[MAX_PARTS - 1 :]
    made += _split(tape, value, sizes, axis, parts[len(made)].name)
    for old, new in zip(parts, made, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    for constant in tape.initializers:
        graph.register_initializer(constant)
    graph.insert_before(node, tape.nodes)
    ir.convenience.replace_all_uses_with(parts, made, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _split(tape: ir.tape.Tape, value: ir.Value | None, sizes: list[int], axis: int, name: str | None) -> list[ir.Value]:
    lengths = tape.initializer(ir.tensor(np.array(sizes), name=f"{name}.sizes"))
    return list(tape.op_multi_out("Split", [value, lengths], {"axis": axis}, num_outputs=len(sizes)))


def _is_wide(node: ir.Node) -> bool:
    if node.op_type != "Split" or node.domain or len(node.outputs) <= MAX_PARTS:
        return False
    return len(set(split_sizes(node) or ())) > 1


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
    node = producer(value, "Sub")
    return node is not None and node.inputs[0] is node.inputs[1]
