"""Products of weights in few bits on ONNX Runtime.

Row-wise W8A8: products of int8 weights, one scale an output, and of uint8 activations, one scale a row.

Each row of the activations is divided by its largest magnitude and rounded to steps of 1/127 (per-token dynamic
quantization: Yao et al. 2022, arXiv 2206.01861, section 4.1), so that no row depends on the other rows. The
product is exact in integers; the scale of the row and those of the outputs follow. (ONNX Runtime's
`MatMulIntegerToFloat` applies the latter by itself, and is slower than `MatMulInteger`, a cast and a product.)

Weight-only int4 for ONNX Runtime: `MatMulNBits`, symmetric, one scale for each block of inputs of an output.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..weights.recipe import Recipe
from .linears import MICROSOFT, Group, constant, groups, is_table, matrix, name_of, put_in_place

# From 0 to the largest magnitude of a row.
STEPS_OF_ONE = 127
# What 0 is called among the uint8 activations.
ZERO = np.uint8(128)


def quantize_rows(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of layers that are products of integers now, those counted singly that became one product."""
    graph = model.graph
    rounded: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    changed = 0
    for group, _ in list(groups(graph, recipe, "int8")):
        nodes: list[ir.Node] = []
        values = group[0].input
        if values not in rounded:
            nodes, rounded[values] = rounded_rows(graph, values)
        put_in_place(graph, group, [*nodes, *_product(graph, group, recipe, *rounded[values])])
        changed += len(group)
    return changed


def rounded_rows(graph: ir.Graph, values: ir.Value) -> tuple[list[ir.Node], tuple[ir.Value, ir.Value]]:
    """`values [..., K]` as uint8, and the largest magnitude of each row, `[..., 1]`.

    A row of zeros is divided by 0; what its NaN is rounded to is multiplied by 0 again.
    """
    magnitudes = ir.node("Abs", [values])
    axis = constant(graph, "rows.axis", np.array([-1]))
    largest = ir.node("ReduceMax", [magnitudes.outputs[0], axis], {"keepdims": 1})
    unit = ir.node("Div", [values, largest.outputs[0]])
    step = constant(graph, "rows.step", np.array(1 / STEPS_OF_ONE, np.float32))
    rounding = ir.node("QuantizeLinear", [unit.outputs[0], step, constant(graph, "rows.zero", np.array(ZERO))])
    return [magnitudes, largest, unit, rounding], (rounding.outputs[0], largest.outputs[0])


def _product(
    graph: ir.Graph, group: Group, recipe: Recipe, activations: ir.Value, row_scale: ir.Value
) -> list[ir.Node]:
    values, scales = stored(group, recipe)
    name = name_of(group)
    nodes = []
    if is_table(group[0].weight):  # stored as the rows that are picked from it
        table = constant(graph, f"{name}.int8", values)
        nodes.append(ir.node("Transpose", [table], {"perm": [1, 0]}))  # once, when the graph is loaded
        weight = nodes[0].outputs[0]
    else:
        weight = constant(graph, f"{name}.int8", np.ascontiguousarray(values.T))
    outputs = constant(graph, f"{name}.scales", output_steps(scales))
    nodes.append(integer_product(graph, activations, weight))
    return [*nodes, *scaled(nodes[-1].outputs[0], row_scale, outputs)]


def stored(group: Group, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Values `[N, K]` and scales `[N]` or `[N, K / block]` of the group's layers, one after another."""
    values, scales = zip(*(recipe.weights[linear.name].quantize(matrix(linear)) for linear in group), strict=True)
    return np.concatenate(values), np.concatenate(scales)


def output_steps(scales: np.ndarray) -> np.ndarray:
    """What a unit of a product of integers stands for, by output, before the scale of the row."""
    return (scales * np.float32(1 / STEPS_OF_ONE)).astype(np.float32)


def integer_product(graph: ir.Graph, activations: ir.Value, weight: ir.Value) -> ir.Node:
    """activations: as `rounded_rows` gives them. weight: int8."""
    return ir.node("MatMulInteger", [activations, weight, constant(graph, "rows.zero", np.array(ZERO))])


def scaled(product: ir.Value, row_scale: ir.Value, outputs: ir.Value) -> list[ir.Node]:
    """Sums of integers as floats. outputs: of `output_steps`.

    The row first: the other way round, ONNX Runtime would fuse all of it again.
    """
    wide = ir.node("Cast", [product], {"to": ir.DataType.FLOAT})
    by_row = ir.node("Mul", [wide.outputs[0], row_scale])
    return [wide, by_row, ir.node("Mul", [by_row.outputs[0], outputs])]


# The kernels that are fast on CPUs round the activations to int8 by blocks as they go.
ACCURACY_LEVEL = 4


def quantize_nbits(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of layers in four bits, those counted singly that became one product."""
    graph = model.graph
    changed = 0
    for group, weight_recipe in list(groups(graph, recipe, "int4")):
        values, scales = stored(group, recipe)
        outputs, inputs = values.shape
        block = weight_recipe.block or inputs
        name = name_of(group)
        # Rows of blocks, as the operator wants it; a table is stored as its rows, and shaped when the graph is loaded.
        shape = constant(graph, f"{name}.blocks", np.array([outputs, inputs // block, block // 2]))
        blocks = ir.node("Reshape", [constant(graph, f"{name}.int4", packed(values)), shape])
        by_block = constant(graph, f"{name}.scales", block_scales(values, scales))
        spread = ir.node("Reshape", [by_block, constant(graph, "nbits.flat", np.array([-1]))])
        attributes = dict(K=inputs, N=outputs, bits=4, block_size=block, accuracy_level=ACCURACY_LEVEL)
        product = ir.node(
            "MatMulNBits", [group[0].input, blocks.outputs[0], spread.outputs[0]], attributes, domain=MICROSOFT
        )
        put_in_place(graph, group, [blocks, spread, product])
        changed += len(group)
    return changed


def block_scales(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """`[N, K / block]` for values `[N, K]`; 0 for a block of zeros, whatever its scale is.

    The kernel sums 4 bits without a sign and takes 8 times the scale off, in fp32: where a table is padded with rows of
    zeros, logits of 1e-5 would be left.
    """
    by_block = scales.reshape(len(values), -1)
    used = values.reshape(*by_block.shape, -1).any(-1)
    return np.where(used, by_block, np.zeros_like(by_block))


def packed(values: np.ndarray) -> np.ndarray:
    """`[N, K]` from -8 to 7 as `[N, K / 2] uint8`, two a byte, the first in the low half; 8 stands for 0."""
    shifted = (values + 8).astype(np.uint8)
    result: np.ndarray = shifted[:, ::2] | (shifted[:, 1::2] << 4)
    return result
