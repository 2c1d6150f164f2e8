"""Weight-only int4 for TensorRT: DequantizeLinear by blocks of inputs, symmetric; products are of the graph's type.

ONNX's DequantizeLinear of opset 21: `[N, K] int4`, two a byte and the first in the low half, scales `[N, K / block]`,
axis 1.
"""

from __future__ import annotations

import onnx_ir as ir

from ...calibration.weights.recipe import Recipe
from .matrices import matrices
from .stored_weights import Made, dequantize


def quantize_blocks(model: ir.Model, recipe: Recipe, made: Made) -> int:
    """Returns the number of weights.

    Rows of a table are picked after the DequantizeLinear, and only they are restored.
    """
    chosen = list(matrices(model.graph, recipe, ("int4",)))
    for weight, transposed, own in chosen:
        assert own.input_scale is None, "int4 is for weights only"
        dequantize(model.graph, weight, transposed, own, made)
    return len(chosen)
