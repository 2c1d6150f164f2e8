"""Queries, keys and values that one product gives go to the attention operator as they come, without being split."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from .linears import constant, splits_last_axis
from .rotary import PLACES


def attention_parts(model: ir.Model) -> list[list[ir.Value]]:
    """Of each attention layer, what its queries, keys and values are made of, where nothing else reads that: the
    outputs of products, before their biases are added.
    """
    return [[part for part, _ in parts] for node, _, parts in _apart(model) if _only_used(parts, node)]


def pack_attention(model: ir.Model) -> int:
    """Returns the number of attention layers that take one packed input `[1, T, (H + 2 * H_kv) * D]` now.

    Biases that an Add brings to each of the three become one.
    """
    graph = model.graph
    changed = 0
    for node, inputs, parts in _apart(model):
        splits = {part.producer() for part, _ in parts}
        split = splits.pop()
        if splits or split is None or split.op_type != "Split" or list(split.outputs) != [part for part, _ in parts]:
            continue
        ranks = {len(value.shape) for value in (*split.inputs[:1], *split.outputs) if value and value.shape is not None}
        if not splits_last_axis(split) or not ranks <= {3}:
            continue
        biases = [bias for _, bias in parts if bias is not None]
        if len(biases) not in (0, 3) or not _only_used(parts, node):
            continue
        merged = split.inputs[0]
        assert merged is not None
        if biases:
            values = np.concatenate([bias.const_value.numpy().reshape(-1) for bias in biases])  # type: ignore[union-attr]
            add = ir.node("Add", [merged, constant(graph, "+".join(bias.name or "" for bias in biases), values)])
            add.outputs[0].type = merged.type
            graph.insert_before(node, add)
            merged = add.outputs[0]
        for index, packed in zip(inputs, (merged, None, None), strict=True):
            node.replace_input_with(index, packed)
        changed += 1
    return changed


def _apart(model: ir.Model) -> Iterator[tuple[ir.Node, tuple[int, ...], list[tuple[ir.Value, ir.Value | None]]]]:
    """Attention layers whose queries, keys and values are three inputs: which these are, and what they are made of."""
    for node in list(model.graph):
        if (places := PLACES.get((node.domain, node.op_type))) is not None:
            inputs = (0, places.keys, places.keys + 1)
            given = (node.inputs[0], *node.inputs[places.keys : places.keys + 2])  # one that reads has no more
            parts = [_part(value) for value in given if value is not None]
            if len(parts) == len(inputs):
                yield node, inputs, parts


def _part(value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The value, or what a stored bias was added to, and that bias. Looks through Reshapes to `[1, T, n]`."""
    node = value.producer()
    if node is not None and node.op_type == "Reshape" and node.inputs[0] is not None:
        return _part(node.inputs[0])
    if node is not None and node.op_type == "Add":
        for one, other in ((0, 1), (1, 0)):
            bias = node.inputs[other]
            if (
                bias is not None
                and bias.is_initializer()
                and bias.const_value is not None
                and node.inputs[one] is not None
            ):
                return node.inputs[one], bias  # type: ignore[return-value]
    return value, None


def _only_used(parts: list[tuple[ir.Value, ir.Value | None]], attention: ir.Node) -> bool:
    """Whether nothing but the attention reads the three."""
    pending = [part for part, _ in parts]
    while pending:
        for use in pending.pop().uses():
            if use.node is attention:
                continue
            if use.node.op_type not in ("Add", "Reshape"):
                return False
            pending += use.node.outputs
    return True
