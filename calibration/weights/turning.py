"""Spreads outliers over blocks of channels in front of a layer, by a small product with a Hadamard matrix as it runs.

QuaRot's online rotation (Ashkboos et al. 2024, arXiv 2404.00456, section 4, stage 1c) in blocks. What a gate lets
through has outliers in other channels for every token: neither scales of channels nor a rotation of the residual stream
reach them. The layer's weight is turned by the same matrix, so the model's answers stay.

The product is fp32, and a row's bits do not depend on what runs beside it: a row is several rows of it, so kernels see
many rows always, and all of a block's terms are summed in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .collect_activations import InputGroup, Observations
from .layers import LinearLayer
from .orthogonal import hadamard
from .output_error import output_error, sampled_outputs
from .producers import Probe
from .recipe import WeightRecipe
from .smoothing import PROBED_TOKENS, relative

# Sizes of a block, best first. Twice as large is 10 to 40 % less error and twice the product.
BLOCKS = (64, 32, 16)
# A turned input must lower the error at least to this part: gated activations reach a tenth, attention's outputs half.
WORTH = 0.25


class Turn:
    """A forward pre-hook: inputs [..., K] times the Hadamard matrix in blocks. It stays in the model, and is traced."""

    def __init__(self, block: int) -> None:
        self.matrix = hadamard(block)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.apply(args[0]), *args[1:]

    def apply(self, values: Tensor) -> Tensor:
        """values [..., K] in their dtype. No shape is computed of a traced [1, T, K]."""
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
    """Turn the inputs of layers that round each row by a scale of its own, where that is worth its product.

    tokens: [1, T], of which a few are used to see which layers read a norm: those have freer means. Returns the
    observations of the changed model and the paths of the layers.
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
    """The groups whose inputs `turn_inputs` would turn, each of one layer, and by what."""
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
    """Turn the inputs of the group's one layer, in place.

    The group as it is then: of what is known of its inputs, only the sampled rows tell.
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
