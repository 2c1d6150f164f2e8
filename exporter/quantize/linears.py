"""The linear layers of a traced graph: products with a stored weight, as tracing and fusing leave them.

Those that read the same values become one product: query, key and value; a gate and what it gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..passes.clean_up import parameter_name
from ..passes.match import permuted
from ..weights.recipe import Format, Recipe, WeightRecipe

# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"


def constant(graph: ir.Graph, name: str, values: np.ndarray) -> ir.Value:
    """An initializer; the one that is there if the name is taken."""
    if name not in graph.initializers:
        tensor = ir.tensor(values, name=name)
        graph.register_initializer(ir.val(name, tensor.dtype, ir.Shape(values.shape), const_value=tensor))
    return graph.initializers[name]


FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Linear:
    """`output = input . weight^T`. weight: `[N, K]` as stored if `transposed`, else `[K, N]`.

    bias: what the node itself adds (of a Gemm), `[N]`; one that an Add of its own brings is none of the layer's.
    """

    node: ir.Node
    weight: ir.Value
    transposed: bool
    bias: ir.Value | None = None

    @property
    def input(self) -> ir.Value:
        """As it is now: an earlier layer that was replaced gives it under another identity."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def index(self) -> ir.Value:
        """Of a table, which rows are picked."""
        value = self.node.inputs[1]
        assert value is not None
        return value

    @property
    def output(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def name(self) -> str:
        """The weight's name in the checkpoint."""
        return parameter_name(self.weight)

    @property
    def size(self) -> tuple[int, int]:
        """(N, K), outputs and inputs."""
        assert self.weight.const_value is not None
        rows, columns = (int(length) for length in self.weight.const_value.shape.numpy())
        return (rows, columns) if self.transposed else (columns, rows)


def linears(graph: ir.Graph) -> list[Linear]:
    """In the order of the graph. Weights that are no matrices, as those of experts, are not among them."""
    return [linear for node in graph for linear in _linear(node)]


def _linear(node: ir.Node) -> Iterator[Linear]:
    """Of `MatMul(x, w)`, `MatMul(x, Transpose(w))`, `FusedMatMul(x, w, transB=1)` and `Gemm(x, w, bias)`; else none."""
    if node.op_type not in ("MatMul", "FusedMatMul", "Gemm") or len(node.inputs) < 2:
        return
    value, weight = node.inputs[0], node.inputs[1]
    if value is None or weight is None or value.is_initializer():
        return
    transposed = bool(node.attributes.get_int("transB", 0))
    if node.attributes.get_int("transA", 0) or any(
        node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")
    ):
        return
    if (stored := permuted(weight, [1, 0])) is not None:
        weight, transposed = stored, not transposed
    if weight.const_value is None or len(weight.const_value.shape) != 2 or weight.dtype not in FLOATS:
        return
    yield Linear(node, weight, transposed, node.inputs[2] if len(node.inputs) > 2 else None)


def matrices(
    graph: ir.Graph, recipe: Recipe, formats: tuple[Format, ...]
) -> Iterator[tuple[ir.Value, bool, WeightRecipe]]:
    """Each once: the weight, whether it is stored `[N, K]`, and what is done to it. A table is `[rows, K]`."""
    layouts = {linear.weight: linear.transposed for linear in linears(graph)}
    for table in picked_tables(graph):
        layouts.setdefault(table.weight, True)
    for weight, transposed in layouts.items():
        weight_recipe = recipe.weights.get(parameter_name(weight))
        if weight_recipe is not None and weight_recipe.format in formats:
            yield weight, transposed, weight_recipe


def picked_tables(graph: ir.Graph) -> list[Linear]:
    """The matrices whose rows are picked, as layers whose node is a Gather."""
    return [
        Linear(node, weight, transposed=True)
        for node in graph
        if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0
        if (weight := node.inputs[0]) is not None and weight.is_initializer() and weight.dtype in FLOATS
        if weight.const_value is not None and len(weight.const_value.shape) == 2
    ]


Group = list[Linear]


def groups(graph: ir.Graph, recipe: Recipe, form: Format) -> Iterator[tuple[Group, WeightRecipe]]:
    """The layers that `recipe` stores in `form`, those together that can be one product, with the recipe of the first.

    They read the same value, with the same block, and follow on each other in the graph, so that none of them
    feeds another. A layer whose table others read as rows too, an embedding, stays by itself: the table is stored once.
    So does one that adds a bias.
    """
    by_input: dict[tuple[ir.Value, object], Group] = {}
    for linear in linears(graph):
        weight_recipe = recipe.weights.get(linear.name)
        if weight_recipe is None or weight_recipe.format != form:
            continue
        alone = linear.name if is_table(linear.weight) or linear.bias is not None else None
        by_input.setdefault((linear.input, (weight_recipe.block, weight_recipe.limit, alone)), []).append(linear)
    for group in by_input.values():
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


def splits_last_axis(split: ir.Node) -> bool:
    """Whether a Split parts its input along the last axis, as far as its shape says."""
    axis, value = split.attributes.get_int("axis", 0), split.inputs[0]
    return axis == -1 or (value is not None and value.shape is not None and axis == len(value.shape) - 1)


def name_of(group: Group) -> str:
    return "+".join(linear.name for linear in group)


def put_in_place(graph: ir.Graph, group: Group, tape: ir.tape.Tape, merged: ir.Value) -> None:
    """The nodes on `tape`, of which `merged` has all the group's outputs one after another, instead of the group's own
    nodes.
    """
    if group[0].bias is not None:
        merged = tape.op("Add", [merged, group[0].bias])
    merged.type = group[0].output.type
    results = [merged]
    if len(group) > 1:
        sizes = constant(graph, f"{name_of(group)}.sizes", np.array([linear.size[0] for linear in group], np.int64))
        results = list(tape.op_multi_out("Split", [merged, sizes], {"axis": -1}, num_outputs=len(group)))
    # All of them read one value, so the place of the first is good for all.
    nodes, olds = [linear.node for linear in group], [linear.output for linear in group]
    ir.convenience.replace_nodes_and_values(graph, nodes[0], nodes, tape.nodes, olds, results)
