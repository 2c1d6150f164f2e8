"""Linear layers that read the same values become one product: query, key and value; a gate and what it gates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...calibration.weights.recipe import Format, Recipe, WeightRecipe
from .constants import constant
from .linears import Linear, linears

Group = list[Linear]


def groups(graph: ir.Graph, recipe: Recipe, form: Format) -> Iterator[tuple[Group, WeightRecipe]]:
    """The layers that `recipe` stores in `form`, those together that can be one product, with the recipe of the first.

    They read the same value, with the same scale or block, and follow on each other in the graph, so that none of them
    feeds another. A layer whose table others read as rows too, an embedding, stays by itself: the table is stored once.
    So does one that adds a bias.
    """
    found: dict[tuple[ir.Value, object], Group] = {}
    for linear in linears(graph):
        own = recipe.weights.get(linear.name)
        if own is None or own.format != form:
            continue
        alone = linear.name if is_table(linear.weight) or linear.bias is not None else None
        found.setdefault((linear.input, (own.block, own.limit, own.input_scale, alone)), []).append(linear)
    for group in found.values():
        yield group, recipe.weights[group[0].name]


def is_table(weight: ir.Value) -> bool:
    """Whether rows are picked from the weight."""
    return any(use.node.op_type == "Gather" and use.idx == 0 for use in weight.uses())


def matrix(linear: Linear) -> np.ndarray:
    """The layer's weight as `[N, K] float32`."""
    tensor = linear.weight.const_value
    assert tensor is not None
    values: np.ndarray = tensor.numpy().astype(np.float32, copy=False)
    return np.ascontiguousarray(values if linear.transposed else values.T)


def name_of(group: Group) -> str:
    return "+".join(linear.name for linear in group)


def put_in_place(graph: ir.Graph, group: Group, nodes: list[ir.Node]) -> None:
    """`nodes`, the last of which gives all the group's outputs one after another, instead of the group's own nodes."""
    first, bias = group[0].node, group[0].bias
    if bias is not None:
        nodes = [*nodes, ir.node("Add", [nodes[-1].outputs[0], bias])]
    merged = nodes[-1].outputs[0]
    merged.type = group[0].output.type
    results = [merged]
    if len(group) > 1:
        sizes = constant(graph, f"{name_of(group)}.sizes", np.array([linear.size[0] for linear in group], np.int64))
        split = ir.node("Split", [merged, sizes], {"axis": -1}, num_outputs=len(group))
        nodes, results = [*nodes, split], list(split.outputs)
    olds = [linear.output for linear in group]
    for old, new in zip(olds, results, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
    # All of them read one value, so the place of the first is good for all.
    ir.convenience.replace_nodes_and_values(graph, first, [linear.node for linear in group], nodes, olds, results)
