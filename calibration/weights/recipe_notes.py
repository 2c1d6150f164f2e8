"""Notes for the user of a build on what a recipe does to the model as a whole, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from .recipe import SATURATING_LIMIT, WeightRecipe


def rounding_notes(
    weights: Mapping[str, WeightRecipe], layers: Set[str], stacks: Set[str], by_row: bool
) -> Iterator[str]:
    """Notes on static scales where scales per row were possible, and on second-order rounding.

    layers: weights that are multiplied; a table that is looked up rounds no activations. stacks: stacks of experts,
    which are rounded separately and have their own notes. by_row: whether the engine rounds row by row.
    """
    rounding = [own for name, own in weights.items() if name in layers and own.format == "int8" and by_row]
    if static := sum(recipe.input_scale is not None for recipe in rounding):
        yield f"{static} of {len(rounding)} layers in int8 round activations by a static scale, the others row by row"
    others = [own for name, own in weights.items() if name not in stacks]
    if chosen := sum(own.stored is not None for own in others):
        yield f"{chosen} of {len(others)} weights are rounded by GPTQ"


def limit_notes(weights: Mapping[str, WeightRecipe], layers: Set[str], by_row: bool) -> Iterator[str]:
    """A note on weights that are fast only on hosts whose products do not saturate."""
    largest = max((own.limit for name, own in weights.items() if name in layers and own.format == "int8"), default=0)
    if by_row and largest > SATURATING_LIMIT:
        yield (
            f"weights use int8 up to {largest}: CPUs without VNNI (x86) or dot products (ARM) run them by slower "
            "kernels, with the same results"
        )
