"""A graph of the dialect `kernels` gets its operators: the passes in their order."""

from __future__ import annotations

import onnx_ir as ir

from ..passes.clean_up import CLEAN_UP
from ..passes.fusions import expand_rms_normalization
from ..quantize.apply import check_stored
from ..quantize.batch_invariant import look_angles_up, spell_softplus_out
from ..quantize.picked_weights import quantize_expert_rows, quantize_tables
from ..quantize.rotary import absorb_rotary, pack_attention
from ..weights.recipe import Recipe
from .fuse import DOMAIN, fuse_around_products
from .products import use_products


def use_kernels(model: ir.Model, recipe: Recipe, capacity: int) -> int:
    """Change an optimized graph; returns the number of layers and tables. capacity: rows of the cache.

    What has no operator of ours keeps ONNX Runtime's, in forms that give a row the same bits in passes of any width.
    Raises `UnsupportedModelError` for a weight of the recipe that stays as it was.
    """
    absorb_rotary(model, capacity)
    changed = use_products(model, recipe) + quantize_expert_rows(model, recipe)
    quantize_tables(model, recipe)
    CLEAN_UP(model)  # what the rotary embedding left would keep queries and keys apart
    pack_attention(model)
    fuse_around_products(model)
    expand_rms_normalization(model)
    look_angles_up(model, capacity)
    spell_softplus_out(model)
    model.opset_imports[DOMAIN] = 1
    CLEAN_UP(model)
    check_stored(model, recipe)
    return changed
