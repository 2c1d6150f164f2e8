"""How stacks of experts are stored: their formats, and their integers.

The format that each stack of experts is stored in: judged, like layers, on the rows that calibration texts route to
it.

Rounds stacks of experts: one scale for each output of each expert, and integers chosen by GPTQ on the expert's own
rows if it saw enough of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .collect_activations import SAMPLED_ROWS
from .experts import ExpertLayer, expert_layers
from .formats import INT4_HIGH, INT4_LOW, Float32, Int8
from .gptq import DAMPING, ScaleCast, identity_scales, inverse_factor, rounded, together
from .layers import stopped_at_head
from .mixing import some
from .output_error import HIGHER, spread_rows, squared_error, stands_out
from .recipe import Format, WeightRecipe


@dataclass(frozen=True, eq=False)
class StackRows:
    """Input rows of one stack. rows: [R, K] fp32, spread evenly over a few texts. experts: [R], the expert of each."""

    rows: Tensor
    experts: Tensor


def decide_stacks(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    format: Format,
    recipe_of: Callable[[ExpertLayer, Format], WeightRecipe],
) -> tuple[dict[str, WeightRecipe], list[str]]:
    """(recipes by weight, names of the weights in a higher format than `format`), without stacks that no text reaches.

    Stacks are judged relative to each other. recipe_of: a stack's recipe in a format.
    """
    layers = expert_layers(model)
    seen = observe_stacks(model, token_batches) if layers else {}
    chosen = {layer: recipe_of(layer, format) for layer in layers if layer.weight in seen}
    errors = {layer: stack_error(layer, seen[layer.weight], own) for layer, own in chosen.items()}
    typical = statistics.median(errors.values()) if errors else 0.0
    kept = [layer for layer, own in chosen.items() if stands_out(errors[layer], typical, own.format)]
    chosen |= {layer: recipe_of(layer, HIGHER[format]) for layer in kept}
    return {layer.weight: own for layer, own in chosen.items()}, [layer.weight for layer in kept]


def observe_stacks(model: nn.Module, token_batches: Sequence[Tensor]) -> dict[str, StackRows]:
    """Input rows by the stack's weight; stacks that no text reaches are missing. token_batches: each [1, T] int64, of
    which a few are read.
    """
    taken = some(token_batches)
    most = -(-SAMPLED_ROWS[1] // len(taken))
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    hooks = [
        layer.module.register_forward_pre_hook(_keeping(found.setdefault(layer.weight, []), most))
        for layer in expert_layers(model)
    ]
    try:
        with stopped_at_head(model) as run:
            for tokens in taken:
                run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: StackRows(torch.cat([rows for rows, _ in seen]), torch.cat([experts for _, experts in seen]))
        for name, seen in found.items()
        if seen
    }


def stack_error(layer: ExpertLayer, seen: StackRows, recipe: WeightRecipe) -> float:
    """Relative squared error of the rounded stack's outputs, like `output_error` of a linear layer."""
    total = squares = 0.0
    for expert in sorted(set(seen.experts.tolist())):
        matrix = spread_rows(layer.module.weight.data[expert])
        off, size = squared_error(seen.rows[seen.experts == expert], matrix, recipe)
        total, squares = total + off, squares + size
    return total / squares if squares > 0 else 0.0


def _keeping(kept: list[tuple[Tensor, Tensor]], most: int) -> Any:
    def read(module: nn.Module, args: tuple[Any, ...]) -> None:
        rows, experts = args[0].detach(), args[1]
        step = max(1, -(-len(rows) // most))
        kept.append((rows[::step].float().clone(), experts[::step].clone()))

    return read


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
    scale_cast: ScaleCast = identity_scales,
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
    state = _State(torch.arange(tokens.shape[1])[None] < lengths[:, None], recipes, scale_cast, damping)
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
    def __init__(
        self, used: Tensor, recipes: Mapping[str, WeightRecipe], scale_cast: ScaleCast, damping: float
    ) -> None:
        self.used, self.recipes, self.scale_cast, self.damping = used.flatten(), recipes, scale_cast, damping
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
                parts.append(to_nearest(weight.float().numpy(), recipe, self.scale_cast))
            else:
                fitted += 1
                parts.append(rounded(weight.float(), factor, recipe, self.scale_cast))
        if fitted:
            self.fitted += fitted
            values, scales = zip(*parts, strict=True)
            self.found[layer.weight] = replace(recipe, stored=(np.concatenate(values), np.concatenate(scales)))


def to_nearest(weight: Float32, recipe: WeightRecipe, scale_cast: ScaleCast) -> tuple[Int8, Float32]:
    """Values and scales of a weight [N, K] in int8 or int4: values rounded to nearest, for scales rounded by `hold`."""
    values, scales = recipe.quantize(weight)
    held = scale_cast(scales)
    if np.array_equal(held, scales):
        return values, scales
    low, high = (-recipe.limit, recipe.limit) if recipe.format == "int8" else (INT4_LOW, INT4_HIGH)
    steps = held.reshape(len(held), -1, 1)
    blocks = weight.reshape(len(steps), steps.shape[1], -1) / steps
    return np.clip(np.rint(blocks), low, high).astype(np.int8).reshape(weight.shape), held
