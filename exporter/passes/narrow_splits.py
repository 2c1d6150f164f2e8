"""Splits of few parts, which CUDA graphs can hold.

ONNX Runtime's CUDA kernel for `Split` takes up to four parts of different sizes as arguments. Of more it copies sizes
and addresses from host memory in every run, and a captured copy reads what is there by then. Parts of one size are no
problem, however many. See docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

MOST_PARTS = 4


def narrow_splits(model: ir.Model) -> bool:
    """Whether a split was cut in several, one behind the other. Changes no result."""
    wide = [node for node in model.graph if _is_wide(node)]
    for node in wide:
        _cut(node, model.graph)
    return bool(wide)


def _cut(node: ir.Node, graph: ir.Graph) -> None:
    """The first three parts by themselves, and the rest again."""
    given, sizes, parts = node.inputs[0], _sizes(node), list(node.outputs)
    axis = node.attributes.get_int("axis", 0)
    tape = ir.tape.Tape()
    found: list[ir.Value] = []
    while len(sizes) > MOST_PARTS:
        now = [*sizes[: MOST_PARTS - 1], sum(sizes[MOST_PARTS - 1 :])]
        *first, given = _split(tape, given, now, axis, parts[len(found)].name)
        found += first
        sizes = sizes[MOST_PARTS - 1 :]
    found += _split(tape, given, sizes, axis, parts[len(found)].name)
    for old, new in zip(parts, found, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    for value in tape.initializers:
        graph.register_initializer(value)
    graph.insert_before(node, tape.nodes)
    ir.convenience.replace_all_uses_with(parts, found, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _split(tape: ir.tape.Tape, given: ir.Value | None, sizes: list[int], axis: int, name: str | None) -> list[ir.Value]:
    lengths = tape.initializer(ir.tensor(np.array(sizes), name=f"{name}.sizes"))
    return list(tape.op_multi_out("Split", [given, lengths], {"axis": axis}, num_outputs=len(sizes)))


def _is_wide(node: ir.Node) -> bool:
    if node.op_type != "Split" or node.domain or len(node.outputs) <= MOST_PARTS:
        return False
    sizes = _sizes(node)
    return len(set(sizes)) > 1


def _sizes(node: ir.Node) -> list[int]:
    """Of its parts; empty where they are not constant, or all the same by the node's own word."""
    lengths = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return [] if lengths is None else [int(size) for size in lengths.numpy()]
