"""How stacks of experts are stored: a scale for each output of each expert, rounded by what the expert's own rows have
in common (GPTQ) where it saw enough of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .experts import ExpertLayer, expert_layers
from .gptq import DAMPING, Hold, as_they_are, inverse_factor, rounded
from .layers import stopped_at_head
from .recipe import WeightRecipe
from .second_order import together


@dataclass(frozen=True)
class RoundedExperts:
    """recipes: of stacks that have integers of their own now. fitted: experts whose rows chose them, of `experts`."""

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
    """The integers of the stacks in int8 and int4 among `recipes`.

    An expert that fewer rows reach than it has inputs is rounded to nearest: of the inputs' directions, some were not
    seen at all. A stack without any other is left as it is. token_batches: each [1, T] int64.
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
        """rows: [B T k, K], of each token one for each of its k experts [B T k]."""
        recipe = self.recipes[layer.weight]
        used = self.used.repeat_interleave(len(rows) // len(self.used))
        values, scales, fitted = [], [], 0
        for expert in range(layer.module.weight.shape[0]):
            mine = rows[used & (experts == expert)].float()
            enough = inverse_factor(mine.T @ mine, self.damping) if len(mine) >= rows.shape[1] else None
            fitted += enough is not None
            factor = torch.eye(rows.shape[1]) if enough is None else enough  # nothing in common: to nearest
            own = rounded(layer.module.weight.data[expert].float(), factor, recipe, self.hold)
            values.append(own[0])
            scales.append(own[1])
        if fitted:
            self.fitted += fitted
            stored = np.concatenate(values), np.concatenate(scales)
            self.found[layer.weight] = replace(recipe, stored=stored)
