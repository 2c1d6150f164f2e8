"""What makes a value and what reads it, as passes ask that look for nodes to rewrite. A value may be missing: None."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes the value, if it is of one of these types."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types else None


def source(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What a node of this type makes the value from; None for a value that another one makes."""
    node = producer(value, op_type)
    return node.inputs[0] if node is not None else None


def through(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What a node of this type makes the value from, else the value itself."""
    return value if producer(value, op_type) is None else source(value, op_type)


def permuted(value: ir.Value | None, axes: Sequence[int]) -> ir.Value | None:
    """What a Transpose to these axes makes the value from, else None."""
    node = producer(value, "Transpose")
    return node.inputs[0] if node is not None and [*node.attributes.get_ints("perm", ())] == [*axes] else None


def only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads the value, however often; None also for an output of the graph."""
    nodes = {use.node for use in value.uses()}
    return nodes.pop() if len(nodes) == 1 and not value.is_graph_output() else None


def array(value: ir.Value | None) -> np.ndarray | None:
    """Of a constant."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor.numpy() if tensor is not None else None


def split_sizes(split: ir.Node) -> list[int] | None:
    """Of its parts: None where all have one size, empty where they are not constant."""
    if len(split.inputs) < 2 or split.inputs[1] is None:
        return None
    sizes = array(split.inputs[1])
    return [] if sizes is None else [int(size) for size in sizes]
