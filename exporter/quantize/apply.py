"""A recipe put into a graph: the passes of its dialect, in their order."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from torch.nn import Module

from ...bundle import Family
from ...errors import UnsupportedModelError
from ..dialects import Dialect
from ..passes.clean_up import CLEAN_UP, parameter_name
from ..weights.layers import parameter_names
from ..weights.recipe import Recipe
from .batch_invariant import attend_over_two_rows, look_angles_up, spell_softplus_out
from .for_cuda import quantize_for_cuda
from .for_onnxruntime import quantize_nbits, quantize_rows
from .for_tensorrt import Made, quantize_for_tensorrt
from .linears import FLOATS
from .pack_qkv import pack_attention
from .picked_weights import quantize_expert_rows, quantize_tables
from .rotary import absorb_rotary

Store = Callable[[ir.Model, Recipe], int]


def quantize(
    model: ir.Model,
    dialect: Dialect,
    recipe: Recipe,
    capacity: int,
    made: Made,
    exact_widths: bool,
    family: Family = "onnxruntime",
) -> int:
    """Change an optimized graph; returns the number of weights that are quantized. Raises
    `UnsupportedModelError` for a weight of the recipe that stays as it was. capacity: rows of the cache.

    recipe: by the names that the graph's weights have, see `by_every_name`. made: what the model's earlier graphs got,
    by weight.
    exact_widths: for ONNX Runtime, rows are to have the same bits in passes of any width. family: whose graph the one
    of the dialect `ort` is.
    """
    if dialect != "ort":
        changed = quantize_for_tensorrt(model, recipe, made)
    elif family == "onnxruntime-cuda":
        changed = quantize_for_cuda(model, recipe, capacity)
    else:
        changed = store_and_pack(model, recipe, capacity, quantize_rows, quantize_nbits)
        look_angles_up(model, capacity)
        if exact_widths:
            attend_over_two_rows(model)
            spell_softplus_out(model)
    CLEAN_UP(model)
    check_stored(model, recipe)
    return changed


def store_and_pack(model: ir.Model, recipe: Recipe, capacity: int, *store: Store) -> int:
    """The passes with which every graph for CPUs begins. store: those of the layers; they return how many there are."""
    absorb_rotary(model, capacity)
    changed = sum(layers(model, recipe) for layers in (*store, quantize_expert_rows))
    quantize_tables(model, recipe)  # after the layers, which must see what they share
    CLEAN_UP(model)  # what the rotary embedding left would keep queries and keys apart
    pack_attention(model)
    return changed


def check_stored(model: ir.Model, recipe: Recipe) -> None:
    """Raises `UnsupportedModelError` for a weight that the recipe quantizes and the graph reads as it was."""
    for name, value in model.graph.initializers.items():
        weight_recipe = recipe.weights.get(parameter_name(value))
        if weight_recipe is not None and weight_recipe.format != "float" and value.dtype in FLOATS and value.uses():
            raise UnsupportedModelError(
                f"{name} is used in a way that quantization does not support "
                f"({next(iter(value.uses())).node.op_type}); "
                "build with fp32, fp16 or bf16"
            )


def by_every_name(recipe: Recipe, model: Module) -> Recipe:
    """A recipe with each parameter's entry under all its names: in graphs, a tied weight has the last of them."""
    names = parameter_names(model)
    weights = {
        alias: recipe.weights[name]
        for alias, parameter in model.named_parameters(remove_duplicate=False)
        if (name := names[id(parameter)]) in recipe.weights
    }
    return Recipe(weights, recipe.notes)
