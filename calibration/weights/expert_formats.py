"""The format that each stack of experts is stored in: judged, like layers, on the rows that calibration texts route to
it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .collect_activations import SAMPLED_ROWS
from .experts import ExpertLayer, expert_layers
from .layers import stopped_at_head
from .output_error import HIGHER, spread_rows, squared_error, stands_out
from .recipe import Format, WeightRecipe
from .sensitivity import some


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
