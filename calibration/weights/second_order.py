"""Chooses the integers of a whole model's layers by GPTQ, in one pass over the calibration texts.

All texts go through the model in one batch, so that a layer gets all of its inputs in one call. Their Gram matrix is
computed, used for the layers that share the inputs, and dropped, so there is only one in memory at a time.
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

# The most tokens times the inputs of the widest layer: more would need memory without reducing errors.
MOST_ELEMENTS = 1 << 25


def choose_integers(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    recipes: Mapping[str, WeightRecipe],
    names: Iterable[str],
    hold: Hold = as_they_are,
    damping: float = DAMPING,
) -> dict[str, WeightRecipe]:
    """The recipes of the weights `names` with their integers (`stored`), without weights that no text reaches.

    token_batches: each [1, T] int64. Each weight must be used in one place only. hold: rounds scales. damping: of GPTQ,
    relative to the mean of the Gram matrix's diagonal.
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
            rows = inputs.detach()[self.used].float()  # without padding
            self.last = weakref.ref(inputs), inverse_factor(rows.T @ rows, self.damping)
        return self.last[1]


def together(token_batches: Sequence[Tensor], widest: int) -> tuple[Tensor, Tensor]:
    """(tokens [B, T], lengths [B]): evenly chosen texts, padded at the end, where their own tokens do not attend."""
    total = sum(batch.shape[-1] for batch in token_batches)
    step = max(1, -(-total * widest // MOST_ELEMENTS))
    texts = [batch[0] for batch in token_batches[::step]]
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])
