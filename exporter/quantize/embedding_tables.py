"""Embedding tables of int8 or int4: rows are picked as they are stored, and scaled when they have been picked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..passes.clean_up import parameter_name
from ..weights.recipe import Recipe
from .for_onnxruntime import block_scales, packed
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
        own = recipe.weights.get(parameter_name(weight))
        if own is None or own.format not in ("int8", "int4"):
            continue
        name = parameter_name(weight)
        values, scales = own.quantize(weight.const_value.numpy().astype(np.float32, copy=False))
        if own.format == "int8":
            nodes = _int8(graph, name, tokens, values, scales)
        else:
            nodes = _int4(graph, name, tokens, values, scales, own.block or values.shape[1])
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
