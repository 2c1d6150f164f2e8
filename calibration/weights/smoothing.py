"""Outliers moved from activations into weights, by powers of two, so that no fp32 answer changes by a bit.

SmoothQuant (Xiao et al. 2022, arXiv 2211.10438, section 4) and AWQ (Lin et al. 2023, arXiv 2306.00978, section 3.2)
divide each input channel of a linear layer by s_j and multiply the weight's column by it. Here s_j is a power of two,
which only moves exponents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from .collect_activations import InputGroup, Observations
from .layers import LinearLayer
from .output_error import output_error, rescaled, sampled_outputs
from .producers import Probe, Producer, undo
from .recipe import WeightRecipe

Rule = Literal["smoothquant", "awq"]
# The papers' grids are finer; powers of two leave no room for more. Above 0.5, channels that a few texts leave quiet
# overflow a static scale in others.
STRENGTHS: dict[Rule, tuple[float, ...]] = {"smoothquant": (0.0, 0.25, 0.5), "awq": (0.0, 0.25, 0.5, 0.75)}
# As many steps of 2 up or down from the group's middle.
LARGEST_EXPONENT = 6
# What a migration must win, since it was chosen on a few rows.
WORTH = 0.98
PROBED_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Migration:
    """What was done to one group. strength: 0 where nothing was.

    errors: the relative squared error before and after.
    """

    weights: tuple[str, ...]
    producer: str
    strength: float
    before: float
    after: float


def migrate(
    model: nn.Module,
    observations: Observations,
    tokens: Tensor,
    rule: Rule,
    recipe_of: Callable[[InputGroup, LinearLayer], WeightRecipe],
) -> tuple[Observations, tuple[Migration, ...]]:
    """Scale the weights of `model` in place where that lowers the error of a group's quantized outputs on its sampled rows.

    tokens: [1, T], what candidates are tried on; a few are used. recipe_of: how a layer of a group is going to be
    quantized. Gives the observations of the scaled model, and what was done to each group that has a producer
    (`producers.py`). The model's logits stay equal, bit for bit; should they not, everything is taken back.
    """
    probe = Probe(model, tokens[:, :PROBED_TOKENS])
    groups: list[InputGroup] = []
    done: list[tuple[InputGroup, Producer, Tensor]] = []
    migrations = []
    # From the last to the first: what the probe remembers of a module's inputs holds as long as nothing in front of it
    # was scaled.
    for group in reversed(observations.groups):
        producer = probe.producer(group)
        if producer is None:
            groups.append(group)
            continue
        strength, scales, before, after = _search(group, producer, rule, recipe_of)
        if strength and not probe.try_scales(group, producer, scales):
            strength, after = 0.0, before
        if strength:
            done.append((group, producer, scales))
        groups.append(_scaled(group, scales[producer.spread]) if strength else group)
        migrations.append(
            Migration(tuple(layer.weight for layer in group.layers), producer.path, strength, before, after)
        )
    if not probe.unchanged():
        for group, producer, scales in reversed(done):
            undo(group, producer, scales)
        return observations, ()
    return replace(observations, groups=tuple(reversed(groups))), tuple(reversed(migrations))


def channel_scales(largest_inputs: Tensor, largest_weights: Tensor, strength: float, rule: Rule) -> Tensor:
    """Powers of two [K] around 1. SmoothQuant: max|x|^a / max|w|^(1 - a); AWQ: mean|x|^a.

    Channels without any signal get 1.
    """
    alive = (largest_inputs > 0) & (largest_weights > 0)
    if not bool(alive.any()):
        return torch.ones_like(largest_inputs)
    exponents = strength * torch.log2(largest_inputs)
    if rule == "smoothquant":
        exponents = exponents - (1 - strength) * torch.log2(largest_weights)
    exponents = torch.where(alive, exponents - exponents[alive].mean(), 0.0)
    return torch.exp2(exponents.round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))


def _search(
    group: InputGroup, producer: Producer, rule: Rule, recipe_of: Callable[[InputGroup, LinearLayer], WeightRecipe]
) -> tuple[float, Tensor, float, float]:
    """The strength and scales [count] with the least error, the error without and with them.

    Scales are made of what one half of the texts shows and judged on the other: channels that are quiet in a few texts
    may not be in the next.
    """
    group = replace(group, largest=group.elsewhere)
    matrices = [sampled_outputs(layer) for layer in group.layers]
    recipes = [recipe_of(group, layer) for layer in group.layers]
    inputs = group.largest if rule == "smoothquant" else group.mean_magnitude
    weights = torch.stack([layer.matrix.abs().amax(0).float() for layer in group.layers]).amax(0)
    inputs, weights = _by_channel(inputs, producer), _by_channel(weights, producer)
    best = (0.0, torch.ones(producer.count), 0.0, 0.0)
    for strength in STRENGTHS[rule]:
        scales = channel_scales(inputs, weights, strength, rule) if strength else best[1]
        by_input = scales[producer.spread]
        scaled = _scaled(group, by_input)
        if any(recipe.input_scale is not None for recipe in recipes):
            recipes = [recipe_of(scaled, layer) for layer in group.layers]
            tried = recipes
        else:
            tried = [rescaled(recipe, by_input) for recipe in recipes]
        error = sum(
            output_error(scaled.rows, matrix * by_input, recipe) for matrix, recipe in zip(matrices, tried, strict=True)
        )
        if not strength:
            best = (0.0, scales, error, error)
        elif error < (best[3] if best[0] else WORTH * best[2]):
            best = (strength, scales, best[2], error)
    return best


def _by_channel(values: Tensor, producer: Producer) -> Tensor:
    """[K] to [count]: the largest over the inputs that a channel makes."""
    return torch.zeros(producer.count).scatter_reduce(0, producer.spread, values, "amax")


def _scaled(group: InputGroup, scales: Tensor) -> InputGroup:
    return replace(
        group,
        largest=group.largest / scales,
        elsewhere=group.elsewhere / scales,
        mean_magnitude=group.mean_magnitude / scales,
        mean_square=group.mean_square / scales.square(),
        rows=group.rows / scales,
    )
