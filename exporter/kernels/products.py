"""A graph of the dialect `kernels` gets its operators. Products with stored weights become `Linear`, and tables that
rows are picked from `Embedding`; `fuse.py` has what becomes of the nodes around them.

Weights that the recipe quantizes are stored as it says. All others keep their values: in bf16 or fp16 where these hold
them exactly, as they do for a checkpoint in half precision. Either way rows are computed in fp32, each by itself.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..passes.clean_up import CLEAN_UP
from ..passes.fusions import expand_rms_normalization
from ..quantize.apply import check_stored, store_and_pack
from ..quantize.batch_invariant import look_angles_up, spell_softplus_out
from ..quantize.for_onnxruntime import stored
from ..quantize.linears import Group, Linear, constant, is_table, linears, matrix, name_of, picked_tables, put_in_place
from ..weights.recipe import Recipe
from .fuse import DOMAIN, fuse_around_products, turn_size
from .layouts import BLOCK, FLOAT_FORMATS, float_format, float_panels, floats_in_panels, int4_panels, int8_panels

OPERATORS = {"int8": "Int8", "int4": "Int4"} | {form: name for form, (name, _) in FLOAT_FORMATS.items()}


def use_kernels(model: ir.Model, recipe: Recipe, capacity: int) -> int:
    """Change an optimized graph by all passes, in their order; returns the number of layers and tables. capacity: rows
    of the cache.

    What has no operator of ours keeps ONNX Runtime's, in forms that give a row the same bits in passes of any width.
    Raises `UnsupportedModelError` for a weight of the recipe that stays as it was.
    """
    changed = store_and_pack(model, recipe, capacity, use_products)
    fuse_around_products(model)
    expand_rms_normalization(model)
    look_angles_up(model, capacity)
    spell_softplus_out(model)
    model.opset_imports[DOMAIN] = 1
    CLEAN_UP(model)
    check_stored(model, recipe)
    return changed


def use_products(model: ir.Model, recipe: Recipe) -> int:
    """Returns the number of layers and tables. Layers of one module that read the same values in one format become one
    product: what follows attention's, and what follows a gate's, can then become a part of theirs.

    recipe: by the names that the graph's weights have; the values of weights that it does not name stay.
    """
    graph = model.graph
    groups: dict[tuple[ir.Value, str, str], Group] = {}
    forms: dict[ir.Value, str] = {}
    for linear in linears(graph):
        if turn_size(linear.weight):
            continue
        form = forms.setdefault(linear.weight, _form(linear, recipe))
        alone = is_table(linear.weight) or linear.bias is not None
        module = linear.name if alone else ".".join(linear.name.split(".")[:-2])
        groups.setdefault((linear.input, form, module), []).append(linear)
    read_as_stored = {linear.weight for group in groups.values() for linear in group if not linear.transposed}
    picked = [table for table in picked_tables(graph) if table.index.dtype == ir.DataType.INT64]
    tables = [table for table in picked if table.weight not in read_as_stored]
    for (_, form, _), group in groups.items():
        outputs = sum(linear.size[0] for linear in group)
        inputs = [group[0].input, *_weights(graph, group, form, recipe)]
        tape = ir.tape.Tape()
        product = tape.op(f"Linear{OPERATORS[form]}", inputs, {"num_outputs": outputs}, domain=DOMAIN)
        put_in_place(graph, group, tape, product)
    count = sum(map(len, groups.values()))
    for table in tables:
        form = forms.get(table.weight) or _table_form(table, recipe)
        if form:
            inputs = [table.index, *_weights(graph, [table], form, recipe)]
            attributes, tape = {"num_inputs": table.size[1], "num_outputs": table.size[0]}, ir.tape.Tape()
            rows = tape.op(f"Embedding{OPERATORS[form]}", inputs, attributes, domain=DOMAIN)
            put_in_place(graph, [table], tape, rows)
            count += 1
    return count


def _form(linear: Linear, recipe: Recipe) -> str:
    """How a weight is stored, one of `OPERATORS`."""
    chosen = recipe.weights.get(linear.name)
    return float_format(matrix(linear)) if chosen is None or chosen.format == "float" else chosen.format


def _table_form(table: Linear, recipe: Recipe) -> str:
    """Of a table that no product reads; empty for one that a Gather serves as well."""
    chosen = recipe.weights.get(table.name)
    if chosen is None or chosen.format == "float":
        form = float_format(matrix(table))
        return form if form != "fp32" else ""
    served = chosen.block == (BLOCK if chosen.format == "int4" else 0)
    return chosen.format if served else ""


def _weights(graph: ir.Graph, group: Group, form: str, recipe: Recipe) -> list[ir.Value]:
    """The initializers of a product: weights in panels, and their scales where there are some."""
    name = f"{name_of(group)}.{form}"
    if form in FLOAT_FORMATS:
        if name not in graph.initializers:
            size = sum(linear.size[0] for linear in group), group[0].size[1]
            whole = floats_in_panels(name, lambda: np.concatenate([matrix(linear) for linear in group]), size, form)
            graph.register_initializer(whole)
        return [graph.initializers[name]]
    by_output = f"{name}.scales"
    if name not in graph.initializers:
        values, scales = stored(group, recipe)
        constant(graph, name, int8_panels(values) if form == "int8" else int4_panels(values))
        constant(graph, by_output, scales if form == "int8" else float_panels(scales, "fp32"))
    return [graph.initializers[name], graph.initializers[by_output]]
