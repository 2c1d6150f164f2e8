"""Chooses the integers of a whole model's layers by GPTQ, in one pass over the calibration texts.

All texts go through the model together, so that a layer sees all of its inputs in one call: their Gram matrix is made,
used for the layers that share them and dropped, and memory holds one at a time, however many layers there are.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .gptq import DAMPING, Hold, as_they_are, inverse_factor, rounded
from .layers import LinearLayer, linear_layers, stopped_at_head
from .recipe import WeightRecipe

# Tokens times the inputs of the widest layer: more would take memory, not errors.
MOST_ELEMENTS = 1 << 25


def choose_integers(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    recipes: Mapping[str, WeightRecipe],
    names: Iterable[str],
    hold: Hold = as_they_are,
    damping: float = DAMPING,
) -> dict[str, WeightRecipe]:
    """The recipes of the weights `names` with their integers chosen (`stored`); those that no text reaches are missing.

    token_batches: each [1, T] int64. A weight is used in one place only. hold: what scales are rounded to. damping: of
    GPTQ, relative to the mean of a Gram matrix's diagonal.
    """
    wanted = set(names)
    layers = [layer for layer in linear_layers(model) if layer.weight in wanted]
    if not layers:
        return {}
    tokens, lengths = together(token_batches, max(layer.matrix.shape[1] for layer in layers))
    used = torch.arange(tokens.shape[1])[None] < lengths[:, None]  # [B, T]
    state = _State(used, recipes, hold, damping)
    hooks = [layer.module.register_forward_pre_hook(state.hook(layer)) for layer in layers]
    try:
        with stopped_at_head(model) as run:
            run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return state.found


class _State:
    def __init__(self, used: Tensor, recipes: Mapping[str, WeightRecipe], hold: Hold, damping: float) -> None:
        self.used, self.recipes, self.hold, self.damping = used, recipes, hold, damping
        self.found: dict[str, WeightRecipe] = {}
        self.last: tuple[weakref.ref[Tensor], Tensor | None] | None = None

    def hook(self, layer: LinearLayer) -> Any:
        def read(module: nn.Module, args: tuple[Any, ...]) -> None:
            recipe = self.recipes[layer.weight]
            factor = self.factor(args[0])
            if factor is not None:
                self.found[layer.weight] = replace(
                    recipe, stored=rounded(layer.matrix.float(), factor, recipe, self.hold)
                )

        return read

    def factor(self, inputs: Tensor) -> Tensor | None:
        if self.last is None or self.last[0]() is not inputs:
            rows = inputs.detach()[self.used].float()  # without what was padded
            self.last = weakref.ref(inputs), inverse_factor(rows.T @ rows, self.damping)
        return self.last[1]


def together(token_batches: Sequence[Tensor], widest: int) -> tuple[Tensor, Tensor]:
    """(tokens [B, T], lengths [B]): texts padded at their ends, where no token of theirs looks; evenly chosen."""
    total = sum(batch.shape[-1] for batch in token_batches)
    step = max(1, -(-total * widest // MOST_ELEMENTS))
    texts = [batch[0] for batch in token_batches[::step]]
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])
