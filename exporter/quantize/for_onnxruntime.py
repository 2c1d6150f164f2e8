"""Products of weights in few bits on ONNX Runtime.

Row-wise W8A8: products of int8 weights, one scale an output, and of uint8 activations, one scale a row.

Each row of the activations is divided by its largest magnitude and rounded to steps of 1/127 (per-token dynamic
quantization: Yao et al. 2022, arXiv 2206.01861, section 4.1), so that no row depends on the other rows. The
product is exact in integers; the scale of the row and those of the outputs follow. (ONNX Runtime's
`MatMulIntegerToFloat` applies the latter by itself, and is slower than `MatMulInteger`, a cast and a product.)

Weight-only int4, and int8 on GPUs: `MatMulNBits`, symmetric, one scale for each block of inputs of an output.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..weights.recipe import Format, Recipe
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
        tape, values = ir.tape.Tape(), group[0].input
        if values not in rounded:
            rounded[values] = rounded_rows(graph, tape, values)
        put_in_place(graph, group, tape, _product(graph, tape, group, recipe, *rounded[values]))
        changed += len(group)
    return changed


def rounded_rows(graph: ir.Graph, tape: ir.tape.Tape, values: ir.Value) -> tuple[ir.Value, ir.Value]:
    """`values [..., K]` as uint8, and the largest magnitude of each row, `[..., 1]`.

    A row of zeros is divided by 0; what its NaN is rounded to is multiplied by 0 again.
    """
    axis = constant(graph, "rows.axis", np.array([-1]))
    largest = tape.op("ReduceMax", [tape.op("Abs", [values]), axis], {"keepdims": 1})
    unit = tape.op("Div", [values, largest])
    step = constant(graph, "rows.step", np.array(1 / STEPS_OF_ONE, np.float32))
    return tape.op("QuantizeLinear", [unit, step, constant(graph, "rows.zero", np.array(ZERO))]), largest


def _product(
    graph: ir.Graph, tape: ir.tape.Tape, group: Group, recipe: Recipe, activations: ir.Value, row_scale: ir.Value
) -> ir.Value:
    values, scales = stored(group, recipe)
    name = name_of(group)
    if is_table(group[0].weight):  # stored as the rows that are picked from it
        table = constant(graph, f"{name}.int8", values)
        weight = tape.op("Transpose", [table], {"perm": [1, 0]})  # once, when the graph is loaded
    else:
        weight = constant(graph, f"{name}.int8", np.ascontiguousarray(values.T))
    outputs = constant(graph, f"{name}.scales", output_steps(scales))
    return scaled(tape, integer_product(graph, tape, activations, weight), row_scale, outputs)


def stored(group: Group, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Values `[N, K]` and scales `[N]` or `[N, K / block]` of the group's layers, one after another."""
    values, scales = zip(*(recipe.weights[linear.name].quantize(matrix(linear)) for linear in group), strict=True)
    return np.concatenate(values), np.concatenate(scales)


def output_steps(scales: np.ndarray) -> np.ndarray:
    """What a unit of a product of integers stands for, by output, before the scale of the row."""
    return (scales * np.float32(1 / STEPS_OF_ONE)).astype(np.float32)


def integer_product(graph: ir.Graph, tape: ir.tape.Tape, activations: ir.Value, weight: ir.Value) -> ir.Value:
    """activations: as `rounded_rows` gives them. weight: int8."""
    return tape.op("MatMulInteger", [activations, weight, constant(graph, "rows.zero", np.array(ZERO))])


def scaled(tape: ir.tape.Tape, product: ir.Value, row_scale: ir.Value, outputs: ir.Value) -> ir.Value:
    """Sums of integers as floats. outputs: of `output_steps`.

    The row first: the other way round, ONNX Runtime would fuse all of it again.
    """
    wide = tape.op("Cast", [product], {"to": ir.DataType.FLOAT})
    return tape.op("Mul", [tape.op("Mul", [wide, row_scale]), outputs])


BITS: dict[Format, int] = {"int4": 4, "int8": 8}
# What stands for 0 in int8.
MIDDLE = 128
# The kernels that are fast on CPUs round the activations to int8 by blocks as they go.
ACCURACY_LEVEL = 4


def quantize_nbits(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of layers in four bits, those counted singly that became one product."""
    graph = model.graph
    changed = 0
    for group, _ in list(groups(graph, recipe, "int4")):
        tape = ir.tape.Tape()
        put_in_place(graph, group, tape, nbits_product(graph, tape, group, recipe, accuracy_level=ACCURACY_LEVEL))
        changed += len(group)
    return changed


def nbits_product(graph: ir.Graph, tape: ir.tape.Tape, group: Group, recipe: Recipe, **attributes: int) -> ir.Value:
    """`MatMulNBits` over the group's layers. attributes: in addition to those that the weights say."""
    name, weight_recipe = name_of(group), recipe.weights[group[0].name]
    values, scales = stored(group, recipe)
    outputs, inputs = values.shape
    form, block = weight_recipe.format, weight_recipe.block or inputs
    rows, shape = in_bits(values, form), np.array([outputs, inputs // block, block * BITS[form] // 8])
    if is_table(group[0].weight):  # stored as the rows that are picked from it, and shaped when the graph is loaded
        table = constant(graph, f"{name}.{form}", rows)
        weight = tape.op("Reshape", [table, constant(graph, f"{name}.blocks", shape)])
    else:
        weight = constant(graph, f"{name}.{form}", rows.reshape(shape))
    given = [group[0].input, weight, block_scales(graph, group, values, scales)]
    attributes |= dict(K=inputs, N=outputs, bits=BITS[form], block_size=block)
    return tape.op("MatMulNBits", given, attributes, domain=MICROSOFT)


def block_scales(graph: ir.Graph, group: Group, values: np.ndarray, scales: np.ndarray) -> ir.Value:
    """`[N, K / block]` in the weights' type, for values `[N, K]`; 0 for a block of zeros, whatever its scale is.

    The kernel sums 4 bits without a sign and takes 8 times the scale off, in fp32: where a table is padded with rows of
    zeros, logits of 1e-5 would be left.
    """
    dtype = group[0].weight.dtype
    assert dtype is not None
    by_block = scales.reshape(len(values), -1)
    used = values.reshape(*by_block.shape, -1).any(-1)
    return constant(graph, f"{name_of(group)}.scales", np.where(used, by_block, 0).astype(dtype.numpy()))


def in_bits(values: np.ndarray, form: Format) -> np.ndarray:
    """`[N, K]` as `[N, K * bits / 8] uint8`."""
    return packed(values) if form == "int4" else (values.astype(np.int16) + MIDDLE).astype(np.uint8)


def packed(values: np.ndarray) -> np.ndarray:
    """`[N, K]` from -8 to 7 as `[N, K / 2] uint8`, two a byte, the first in the low half; 8 stands for 0."""
    shifted = (values + 8).astype(np.uint8)
    result: np.ndarray = shifted[:, ::2] | (shifted[:, 1::2] << 4)
    return result
