"""Weight-only int4 for ONNX Runtime: `MatMulNBits`, symmetric, one scale for each block of inputs of an output."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...calibration.weights.recipe import Recipe
from .constants import MICROSOFT, constant
from .merge_linears import groups, matrix, name_of, put_in_place

# The kernels that are fast on CPUs round the activations to int8 by blocks as they go.
ACCURACY_LEVEL = 4


def quantize_nbits(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of layers in four bits, those counted singly that became one product."""
    graph = model.graph
    changed = 0
    for group, own in list(groups(graph, recipe, "int4")):
        stored = [recipe.weights[linear.name].quantize(matrix(linear)) for linear in group]
        values = np.concatenate([integers for integers, _ in stored])  # [N, K]
        scales = np.concatenate([scale for _, scale in stored])  # [N, K / block]
        outputs, inputs = values.shape
        block = own.block or inputs
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
