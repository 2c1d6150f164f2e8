"""Rounds stacks of experts: one scale for each output of each expert, and integers chosen by GPTQ on the expert's own
rows if it saw enough of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .experts import ExpertLayer, expert_layers
from .gptq import DAMPING, Hold, as_they_are, inverse_factor, rounded
from .integers import INT4_HIGH, INT4_LOW, Float32, Int8
from .layers import stopped_at_head
from .recipe import WeightRecipe
from .second_order import together


@dataclass(frozen=True)
class RoundedExperts:
    """recipes: of the stacks whose integers were chosen. fitted: how many of the `experts` were rounded by GPTQ."""

    recipes: dict[str, WeightRecipe]
    fitted: int
    experts: int


def choose_expert_integers(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    recipes: Mapping[str, WeightRecipe],
    hold: Hold = as_they_are,
    damping: float = DAMPING,
) -> RoundedExperts:
    """Choose the integers of the stacks in int8 and int4 among `recipes`.

    An expert that fewer rows reach than it has inputs is rounded to nearest, since some directions of its inputs were
    not seen at all (docs/internals/log.md). A stack with only such experts is left as it is. token_batches: each
    [1, T] int64.
    """
    layers = [
        layer
        for layer in expert_layers(model)
        if layer.weight in recipes and recipes[layer.weight].format in ("int8", "int4")
    ]
    if not layers:
        return RoundedExperts({}, 0, 0)
    tokens, lengths = together(token_batches, max(layer.matrix.shape[1] for layer in layers))
    state = _State(torch.arange(tokens.shape[1])[None] < lengths[:, None], recipes, hold, damping)
    hooks = [layer.module.register_forward_pre_hook(state.hook(layer)) for layer in layers]
    try:
        with stopped_at_head(model) as run:
            run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    experts = sum(layer.module.weight.shape[0] for layer in layers)
    return RoundedExperts(state.found, state.fitted, experts)


class _State:
    def __init__(self, used: Tensor, recipes: Mapping[str, WeightRecipe], hold: Hold, damping: float) -> None:
        self.used, self.recipes, self.hold, self.damping = used.flatten(), recipes, hold, damping
        self.found: dict[str, WeightRecipe] = {}
        self.fitted = 0

    def hook(self, layer: ExpertLayer) -> Any:
        def read(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.choose(layer, args[0].detach(), args[1])

        return read

    def choose(self, layer: ExpertLayer, rows: Tensor, experts: Tensor) -> None:
        """rows: [B T k, K], for each token one row for each of its k experts. experts: [B T k]."""
        recipe, weights = self.recipes[layer.weight], layer.module.weight.data
        used = self.used.repeat_interleave(len(rows) // len(self.used))
        reached = torch.bincount(experts[used], minlength=len(weights)).tolist()
        if max(reached) < rows.shape[1]:
            return
        parts, fitted = [], 0
        for expert, weight in enumerate(weights):
            factor = None
            if reached[expert] >= rows.shape[1]:
                mine = rows[used & (experts == expert)].float()
                factor = inverse_factor(mine.T @ mine, self.damping)
            if factor is None:
                parts.append(to_nearest(weight.float().numpy(), recipe, self.hold))
            else:
                fitted += 1
                parts.append(rounded(weight.float(), factor, recipe, self.hold))
        if fitted:
            self.fitted += fitted
            values, scales = zip(*parts, strict=True)
            self.found[layer.weight] = replace(recipe, stored=(np.concatenate(values), np.concatenate(scales)))


def to_nearest(weight: Float32, recipe: WeightRecipe, hold: Hold) -> tuple[Int8, Float32]:
    """Values and scales of a weight [N, K] in int8 or int4: values rounded to nearest, for scales rounded by `hold`."""
    values, scales = recipe.quantize(weight)
    held = hold(scales)
    if np.array_equal(held, scales):
        return values, scales
    low, high = (-recipe.limit, recipe.limit) if recipe.format == "int8" else (INT4_LOW, INT4_HIGH)
    steps = held.reshape(len(held), -1, 1)
    blocks = weight.reshape(len(steps), steps.shape[1], -1) / steps
    return np.clip(np.rint(blocks), low, high).astype(np.int8).reshape(weight.shape), held
