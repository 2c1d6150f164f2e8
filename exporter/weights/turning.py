"""Turns a layer's inputs: an online rotation by a small Hadamard matrix, which spreads outliers over a few channels.

This is QuaRot's online rotation (Ashkboos et al. 2024, arXiv 2404.00456, section 4, stage 1c), in blocks. The output of
a gate has outliers in different channels for every token, so neither channel scales nor a rotation of the residual
stream help. The layer's weight is turned by the same matrix, so the model's outputs stay the same.

The product is fp32 and batch-invariant: each row of the input becomes several rows of the product, so kernels always
get many rows, and all terms of a block are summed in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .collect_activations import InputGroup, Observations
from .layers import LinearLayer
from .output_error import output_error, sampled_outputs
from .producers import Probe
from .recipe import WeightRecipe
from .rotation import hadamard
from .smoothing import PROBED_TOKENS, relative

# Block sizes, best first. Twice the size means 10 to 40 % less error and twice the cost of the product.
BLOCKS = (64, 32, 16)
# Turning must lower the error to this share or less: gated activations reach a tenth, attention's outputs half.
WORTH = 0.25


class Turn:
    """A forward pre-hook: inputs [..., K] times the Hadamard matrix in blocks. It stays in the model, and is traced."""

    def __init__(self, block: int) -> None:
        self.matrix = hadamard(block)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.apply(args[0]), *args[1:]

    def apply(self, values: Tensor) -> Tensor:
        """`values` [..., K] turned, in their dtype. For a traced [1, T, K], no shape is computed in the graph."""
        turned = values.reshape(-1, self.matrix.shape[0]) @ self.matrix.to(values.dtype)
        if values.ndim == 3:
            return turned.reshape(values.shape[0], -1, values.shape[2])
        return turned.reshape(values.shape)


def turn_inputs(
    model: nn.Module,
    observations: Observations,
    tokens: Tensor,
    recipe_of: Callable[[InputGroup, LinearLayer], WeightRecipe],
) -> tuple[Observations, tuple[str, ...]]:
    """Turn the inputs of layers that use one scale per row, where the gain is worth the cost of the product.

    tokens: [1, T], of which a few are used to find the layers that read a norm; their outliers can be moved at no cost
    at run time. Returns the observations of the changed model and the paths of the turned layers.
    """
    turns = worthwhile_turns(model, observations.groups, tokens, recipe_of)
    groups = [turned(group, turns[group]) if group in turns else group for group in observations.groups]
    return replace(observations, groups=tuple(groups)), tuple(group.layers[0].path for group in turns)


def worthwhile_turns(
    model: nn.Module,
    groups: Sequence[InputGroup],
    tokens: Tensor,
    recipe_of: Callable[[InputGroup, LinearLayer], WeightRecipe],
) -> dict[InputGroup, Turn]:
    """The groups whose inputs `turn_inputs` would turn, each with one layer, and their turns."""
    makers = Probe(model, tokens[:, :PROBED_TOKENS]).makers
    found = {}
    for group in groups:
        layer = group.layers[0]
        block = next((block for block in BLOCKS if group.inputs % block == 0), 0)
        if block and group.calls == 1 and len(group.layers) == 1 and layer.path not in makers:
            recipe = recipe_of(group, layer)
            if recipe.format == "int8" and recipe.input_scale is None and _is_worth(group, recipe, Turn(block)):
                found[group] = Turn(block)
    return found


def _is_worth(group: InputGroup, recipe: WeightRecipe, turn: Turn) -> bool:
    matrix = sampled_outputs(group.layers[0])
    rows = relative(group.rows, [matrix])
    plain = output_error(rows, matrix, recipe)
    return output_error(turn.apply(rows), turn.apply(matrix), recipe) < WORTH * plain


def turned(group: InputGroup, turn: Turn) -> InputGroup:
    """Turn the inputs of the group's one layer, in place; returns the changed group.

    Its statistics are computed from the sampled rows, since nothing else is known about the turned inputs.
    """
    layer = group.layers[0]
    matrix = layer.matrix
    matrix.copy_(turn.apply(matrix.float()))
    layer.module.register_forward_pre_hook(turn)
    rows = turn.apply(group.rows)
    magnitudes = rows.abs()
    return replace(
        group,
        rows=rows,
        largest=magnitudes.amax(0),
        elsewhere=magnitudes.amax(0),
        mean_magnitude=magnitudes.mean(0),
        mean_square=rows.square().mean(0),
    )
