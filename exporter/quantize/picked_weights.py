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
from ..weights.recipe import Format, Recipe, WeightRecipe
from .for_onnxruntime import BITS, block_scales, in_bits, integer_product, output_steps, rounded_rows, scaled, stored
from .linears import FLOATS, MICROSOFT, Linear, constant, picked_tables, put_in_place


def quantize_tables(model: ir.Model, recipe: Recipe, by_block: tuple[Format, ...] = ("int4",)) -> int:
    """Returns the number of tables. by_block: formats whose rows one operator picks and restores.

    After the linear layers: a table that one of them shares is stored once, by its name.
    """
    graph = model.graph
    changed = 0
    for table in picked_tables(graph):
        weight_recipe, tape = recipe.weights.get(table.name), ir.tape.Tape()
        if weight_recipe is None or weight_recipe.format not in BITS:
            continue
        values, scales = stored([table], recipe)
        if weight_recipe.format in by_block:
            rows = _restored_rows(graph, tape, table, weight_recipe.format, values, scales)
        else:
            rows = _int8_rows(graph, tape, table, values, scales)
        put_in_place(graph, [table], tape, rows)
        changed += 1
    return changed


def _int8_rows(graph: ir.Graph, tape: ir.tape.Tape, table: Linear, values: np.ndarray, scales: np.ndarray) -> ir.Value:
    """scales: `[N]`, or `[N, K / block]`, for which a row is parted into its blocks."""
    name, tokens, blocks = table.name, table.index, scales.ndim == 2
    picked = tape.op("Gather", [constant(graph, f"{name}.int8", values), tokens])
    rows = tape.op("Cast", [picked], {"to": int(ir.DataType.FLOAT)})
    if blocks:
        count = scales.shape[1]
        parted = constant(graph, f"{name}.blocks", np.array([0, 0, count, values.shape[1] // count]))
        rows = tape.op("Reshape", [rows, parted])
    scale = tape.op("Gather", [constant(graph, f"{name}.row_scales", scales[..., None]), tokens])
    rows = tape.op("Mul", [rows, scale])
    return tape.op("Reshape", [rows, constant(graph, "tables.whole", np.array([0, 0, -1]))]) if blocks else rows


def _restored_rows(
    graph: ir.Graph, tape: ir.tape.Tape, table: Linear, form: Format, values: np.ndarray, scales: np.ndarray
) -> ir.Value:
    by_block = block_scales(graph, [table], values, scales)
    block = values.shape[1] // scales.reshape(len(values), -1).shape[1]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": BITS[form]}
    inputs = [constant(graph, f"{table.name}.{form}", in_bits(values, form)), table.index, by_block]
    return tape.op("GatherBlockQuantized", inputs, attributes, domain=MICROSOFT)


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
        _integer_product(model.graph, stack, weight_recipe)
        changed += 1
    return changed


def chosen_stacks(graph: ir.Graph, recipe: Recipe) -> Iterator[tuple[Stack, WeightRecipe]]:
    for stack in list(stacks(graph)):
        weight_recipe = recipe.weights.get(stack.name)
        if weight_recipe is not None and weight_recipe.format != "float":
            yield stack, weight_recipe


def _integer_product(graph: ir.Graph, stack: Stack, weight_recipe: WeightRecipe) -> None:
    """In place of the stack's own."""
    assert stack.weight.const_value is not None
    weight = stack.weight.const_value.numpy().astype(np.float32, copy=False)
    experts, outputs, inputs = weight.shape
    values, scales = weight_recipe.quantize(np.ascontiguousarray(weight.reshape(-1, inputs)))
    by_input = values.reshape(experts, outputs, inputs).transpose(0, 2, 1)
    steps = output_steps(scales.reshape(experts, outputs))
    whole = constant(graph, f"{stack.name}.int8", np.ascontiguousarray(by_input))  # [E, K, N]
    axis, tape = constant(graph, "experts.axis", np.array([1])), ir.tape.Tape()
    activations, row_scale = rounded_rows(graph, tape, stack.input)
    spread = tape.op("Unsqueeze", [activations, axis])  # [S, 1, K]
    picked = tape.op("Gather", [whole, stack.experts])  # [S, K, N]
    flat = tape.op("Squeeze", [integer_product(graph, tape, spread, picked), axis])
    scale = tape.op("Gather", [constant(graph, f"{stack.name}.scales", steps), stack.experts])
    result = scaled(tape, flat, row_scale, scale)
    *others, last = stack.nodes
    ir.convenience.replace_nodes_and_values(graph, last, [last], tape.nodes, [stack.output], [result])
    for node in reversed(others):
        if not any(output.uses() for output in node.outputs):
            graph.remove(node, safe=True)
