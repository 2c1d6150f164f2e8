"""Weights in int4 and int8 for ONNX Runtime's CUDA provider: `MatMulNBits`, and `GatherBlockQuantized` for tables.

Each block of a weight's inputs has a scale in the type of the activations, which are not rounded. Blocks of 32 are the
ones for which the provider has its kernels for several tokens.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..weights.formats import Values
from ..weights.recipe import Format, Recipe
from .for_cuda import use_packed_attention
from .for_onnxruntime import packed, stored
from .linears import MICROSOFT, Group, constant, groups, is_table, name_of, picked_tables, put_in_place
from .rotary import attention_parts, pack_attention

BITS: dict[Format, int] = {"int4": 4, "int8": 8}
# What stands for 0 in int8.
MIDDLE = 128


def quantize_for_cuda(model: ir.Model, recipe: Recipe, capacity: int) -> int:
    """Returns the number of layers and tables that are in few bits now. capacity: rows of the cache."""
    use_packed_attention(model, capacity, join=False)
    graph = model.graph
    attended = [{*parts} for parts in attention_parts(model)]
    changed = 0
    for form in BITS:
        for group, _ in list(groups(graph, recipe, form)):
            # The outputs of others, were they one product, would be copied apart.
            together = {linear.output for linear in group} in attended
            for part in [group] if together else [[linear] for linear in group]:
                tape = ir.tape.Tape()
                put_in_place(graph, part, tape, _product(graph, tape, part, recipe, form))
            changed += len(group)
    changed += _pick_rows(graph, recipe)
    pack_attention(model)
    return changed


def _product(graph: ir.Graph, tape: ir.tape.Tape, group: Group, recipe: Recipe, form: Format) -> ir.Value:
    block, name = recipe.weights[group[0].name].block, name_of(group)
    values, scales = stored(group, recipe)
    outputs, inputs = values.shape
    rows, shape = _in_bits(values, form), np.array([outputs, inputs // block, block * BITS[form] // 8])
    if is_table(group[0].weight):  # stored as the rows that are picked from it, and shaped when the graph is loaded
        table = constant(graph, f"{name}.{form}", rows)
        weight = tape.op("Reshape", [table, constant(graph, f"{name}.blocks", shape)])
    else:
        weight = constant(graph, f"{name}.{form}", rows.reshape(shape))
    given = [group[0].input, weight, _scales(graph, name, scales, group[0].weight)]
    attributes = dict(K=inputs, N=outputs, bits=BITS[form], block_size=block)
    return tape.op("MatMulNBits", given, attributes, domain=MICROSOFT)


def _pick_rows(graph: ir.Graph, recipe: Recipe) -> int:
    """Returns the number of tables."""
    changed = 0
    for table in picked_tables(graph):
        weight, name = recipe.weights.get(table.name), table.name
        if weight is None or weight.format not in BITS:
            continue
        form, tape = weight.format, ir.tape.Tape()
        values, scales = stored([table], recipe)
        rows = constant(graph, f"{name}.{form}", _in_bits(values, form))
        given = [rows, table.index, _scales(graph, name, scales, table.weight)]
        attributes = dict(gather_axis=0, quantize_axis=1, block_size=weight.block, bits=BITS[form])
        put_in_place(graph, [table], tape, tape.op("GatherBlockQuantized", given, attributes, domain=MICROSOFT))
        changed += 1
    return changed


def _in_bits(values: Values, form: Format) -> Values:
    """`[N, K]` as `[N, K * bits / 8] uint8`."""
    return packed(values) if form == "int4" else (values.astype(np.int16) + MIDDLE).astype(np.uint8)


def _scales(graph: ir.Graph, name: str, scales: np.ndarray, weight: ir.Value) -> ir.Value:
    """`[N, K / block]`, in the weight's type."""
    assert weight.dtype is not None
    return constant(graph, f"{name}.scales", scales.astype(weight.dtype.numpy()))
