"""Weights that are picked on ONNX Runtime: rows of embedding tables, and matrices of stacks of experts [E, N, K].

Rows of a table are picked as they are stored, in int8 or int4, and scaled then. The matrix of the expert that a row is
routed to is picked as int8 and multiplied in integers, by activations that are rounded row by row as in
`for_onnxruntime.py`: a row has the same bits whatever other rows run, and neither copies nor products are of fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..passes.clean_up import parameter_name
from ..weights.recipe import Recipe, WeightRecipe
from .for_onnxruntime import block_scales, integer_product, output_steps, packed, rounded_rows, scaled
from .linears import FLOATS, MICROSOFT, constant


def quantize_tables(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of tables.

    Before the linear layers are changed: a table that one of them shares is stored once, by its name.
    """
    graph = model.graph
    changed = 0
    for node in list(graph):
        if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
            continue
        weight, tokens = node.inputs[0], node.inputs[1]
        if weight is None or weight.const_value is None or tokens is None or weight.dtype not in FLOATS:
            continue
        weight_recipe = recipe.weights.get(parameter_name(weight))
        if weight_recipe is None or weight_recipe.format not in ("int8", "int4"):
            continue
        name = parameter_name(weight)
        values, scales = weight_recipe.quantize(weight.const_value.numpy().astype(np.float32, copy=False))
        if weight_recipe.format == "int8":
            nodes = _int8(graph, name, tokens, values, scales)
        else:
            nodes = _int4(graph, name, tokens, values, scales, weight_recipe.block or values.shape[1])
        output = nodes[-1].outputs[0]
        output.name, output.type, output.shape = node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, [output])
        changed += 1
    return changed


def _int8(graph: ir.Graph, name: str, tokens: ir.Value, values: np.ndarray, scales: np.ndarray) -> list[ir.Node]:
    """scales: `[N]`, or `[N, K / block]`, for which a row is parted into its blocks."""
    rows = ir.node("Gather", [constant(graph, f"{name}.int8", values), tokens])
    nodes = [rows, ir.node("Cast", [rows.outputs[0]], {"to": int(ir.DataType.FLOAT)})]
    blocks = scales.ndim == 2
    if blocks:
        count = scales.shape[1]
        parted = constant(graph, f"{name}.blocks", np.array([0, 0, count, values.shape[1] // count]))
        nodes.append(ir.node("Reshape", [nodes[-1].outputs[0], parted]))
    wide = nodes[-1].outputs[0]
    scale = ir.node("Gather", [constant(graph, f"{name}.row_scales", scales[..., None]), tokens])
    nodes += [scale, ir.node("Mul", [wide, scale.outputs[0]])]
    if blocks:
        whole = constant(graph, "tables.whole", np.array([0, 0, -1]))
        nodes.append(ir.node("Reshape", [nodes[-1].outputs[0], whole]))
    return nodes


def _int4(
    graph: ir.Graph, name: str, tokens: ir.Value, values: np.ndarray, scales: np.ndarray, block: int
) -> list[ir.Node]:
    stored = constant(graph, f"{name}.int4", packed(values))
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": 4}
    inputs = [stored, tokens, constant(graph, f"{name}.scales", block_scales(values, scales))]
    return [ir.node("GatherBlockQuantized", inputs, attributes, domain=MICROSOFT)]


@dataclass(frozen=True)
class Stack:
    """`output [S, N] = Squeeze(MatMul(Gather(weight, experts), Unsqueeze(input [S, K])))`."""

    nodes: tuple[ir.Node, ...]
    weight: ir.Value
    experts: ir.Value
    input: ir.Value

    @property
    def name(self) -> str:
        """The weight's name in the checkpoint."""
        return parameter_name(self.weight)

    @property
    def output(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


def stacks(graph: ir.Graph) -> Iterator[Stack]:
    """In the order of the graph, as `ExpertStack` is traced."""
    for node in list(graph):
        if node.op_type != "MatMul":
            continue
        picking, spreading = (value.producer() if value is not None else None for value in node.inputs)
        after = [use.node for use in node.outputs[0].uses()]
        if picking is None or spreading is None or len(after) != 1 or after[0].op_type != "Squeeze":
            continue
        weight, experts, rows = picking.inputs[0], picking.inputs[1], spreading.inputs[0]
        if picking.op_type != "Gather" or spreading.op_type != "Unsqueeze" or weight is None or experts is None:
            continue
        if weight.const_value is None or len(weight.const_value.shape) != 3 or weight.dtype not in FLOATS:
            continue
        assert rows is not None
        yield Stack((picking, spreading, node, after[0]), weight, experts, rows)


def quantize_expert_rows(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of stacks, which are in int8."""
    changed = 0
    for stack, weight_recipe in chosen_stacks(model.graph, recipe):
        assert weight_recipe.format == "int8", "ONNX Runtime computes stacks of experts in int8"
        _put(model.graph, stack, _integer_product(model.graph, stack, weight_recipe))
        changed += 1
    return changed


def chosen_stacks(graph: ir.Graph, recipe: Recipe) -> Iterator[tuple[Stack, WeightRecipe]]:
    for stack in list(stacks(graph)):
        weight_recipe = recipe.weights.get(stack.name)
        if weight_recipe is not None and weight_recipe.format != "float":
            yield stack, weight_recipe


def _integer_product(graph: ir.Graph, stack: Stack, weight_recipe: WeightRecipe) -> list[ir.Node]:
    assert stack.weight.const_value is not None
    weight = stack.weight.const_value.numpy().astype(np.float32, copy=False)
    experts, outputs, inputs = weight.shape
    values, scales = weight_recipe.quantize(np.ascontiguousarray(weight.reshape(-1, inputs)))
    by_input = values.reshape(experts, outputs, inputs).transpose(0, 2, 1)
    steps = output_steps(scales.reshape(experts, outputs))
    stored = constant(graph, f"{stack.name}.int8", np.ascontiguousarray(by_input))  # [E, K, N]
    axis = constant(graph, "experts.axis", np.array([1]))
    rounding, (activations, row_scale) = rounded_rows(graph, stack.input)
    spread = ir.node("Unsqueeze", [activations, axis])  # [S, 1, K]
    picked = ir.node("Gather", [stored, stack.experts])  # [S, K, N]
    product = integer_product(graph, spread.outputs[0], picked.outputs[0])
    flat = ir.node("Squeeze", [product.outputs[0], axis])
    scale = ir.node("Gather", [constant(graph, f"{stack.name}.scales", steps), stack.experts])
    nodes = [*rounding, spread, picked, product, flat, scale]
    return [*nodes, *scaled(flat.outputs[0], row_scale, scale.outputs[0])]


def _put(graph: ir.Graph, stack: Stack, nodes: list[ir.Node]) -> None:
    old, new = stack.output, nodes[-1].outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    picking, spreading, product, squeezing = stack.nodes
    ir.convenience.replace_nodes_and_values(graph, squeezing, [squeezing], nodes, [old], [new])
    for node in (product, spreading, picking):
        if not any(output.uses() for output in node.outputs):
            graph.remove(node, safe=True)
