"""Recipes as a build for TensorRT has them: scales of the graph's type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from specexport.bundle import Precision
from specexport.exporter.weights.recipe import Recipe, WeightRecipe, cast_scales


def in_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The same, with all scales of `precision`."""

    def changed(own: WeightRecipe) -> WeightRecipe:
        scale = (
            None if own.input_scale is None else float(cast_scales(np.array(own.input_scale, np.float32), precision))
        )
        return replace(own, scale_type=precision, input_scale=scale)

    return replace(recipe, weights={name: changed(own) for name, own in recipe.weights.items()})
