"""The weights of a graph that a recipe names: those of linear layers, and tables that rows are picked from."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ...calibration.weights.recipe import Format, Recipe, WeightRecipe
from ..passes.weight_names import parameter_name
from .linears import FLOATS, linears


def matrices(
    graph: ir.Graph, recipe: Recipe, formats: tuple[Format, ...]
) -> Iterator[tuple[ir.Value, bool, WeightRecipe]]:
    """Each once: the weight, whether it is stored `[N, K]`, and what is done to it. A table is `[rows, K]`."""
    found = {linear.weight: linear.transposed for linear in linears(graph)}
    for node in graph:
        if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0 and _is_matrix(node.inputs[0]):
            assert node.inputs[0] is not None
            found.setdefault(node.inputs[0], True)
    for weight, transposed in found.items():
        own = recipe.weights.get(parameter_name(weight))
        if own is not None and own.format in formats:
            yield weight, transposed, own


def _is_matrix(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return tensor is not None and len(tensor.shape) == 2 and tensor.dtype in FLOATS
