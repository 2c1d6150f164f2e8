"""Moves outliers from activations into weights.

SmoothQuant (Xiao et al. 2022, arXiv 2211.10438, section 4) and AWQ (Lin et al. 2023, arXiv 2306.00978, section 3.2)
divide each input channel j of a linear layer by s_j and multiply the weight's column by it.

Where each row of activations has its own scale, powers of two are too coarse: s_j is any number, and the logits change
by the rounding of fp32. Everywhere else s_j is a power of two, so that only exponents change, and no bit of the logits.
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
from .producers import Probe, Producer, apply, undo
from .recipe import WeightRecipe

Rule = Literal["smoothquant", "awq"]
# Coarser than the papers' grids, since powers of two cannot distinguish more. Above 0.5, channels that are small in the
# calibration texts overflow a static scale in other texts.
STRENGTHS: dict[Rule, tuple[float, ...]] = {"smoothquant": (0.0, 0.25, 0.5), "awq": (0.0, 0.25, 0.5, 0.75)}
# For scales per row: a finer grid, judged row by row; strong migrations have no drawback there.
ROW_STRENGTHS = (0.0, 0.3, 0.45, 0.6, 0.75)
# The error of a row is taken relative to its output, or to this share of the median output if that is more.
MIN_OUTPUT = 1e-3
# Largest change of a logit if scales are not powers of two, in standard deviations.
TOLERANCE = 1e-3
# Largest power of two, up or down from the group's mean.
LARGEST_EXPONENT = 6
# A migration must reduce the error to this share or less, since it is chosen on a few rows.
WORTH = 0.98
PROBED_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Migration:
    """What was done to one group. strength: 0 if nothing was done. before, after: relative squared error."""

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
    norms: bool = True,
) -> tuple[Observations, tuple[Migration, ...]]:
    """Scale the weights of `model` in place where that lowers the error of a group's quantized outputs.

    Errors are those on the sampled rows. tokens: [1, T], of which a few are used to try candidates. recipe_of: how a
    layer of a group will be quantized. norms: scale norms too, which a rotated stream does not need. Returns the
    observations of the scaled model, and what was done to each group that has a producer (`producers.py`). If the
    model's logits did not stay the same, everything is undone.
    """
    probe = Probe(model, tokens[:, :PROBED_TOKENS])
    groups: list[InputGroup] = []
    done: list[tuple[InputGroup, Producer, Tensor]] = []
    migrations = []
    exact = True
    # Last group first: the probe's recorded inputs of a module are valid as long as nothing before it was scaled.
    for group in reversed(observations.groups):
        producer = probe.producer(group, norms)
        if producer is None:
            groups.append(group)
            continue
        recipes = [recipe_of(group, layer) for layer in group.layers]
        if rule == "smoothquant" and all(own.format == "int8" and own.input_scale is None for own in recipes):
            strength, scales, before, after = _search_by_rows(group, producer, recipes)
            if strength:
                apply(group, producer, scales)
                exact = False
        else:
            strength, scales, before, after = _search(group, producer, rule, recipe_of)
            if strength and not probe.try_scales(group, producer, scales):
                strength, after = 0.0, before
        if strength:
            done.append((group, producer, scales))
        groups.append(_scaled(group, scales[producer.spread]) if strength else group)
        migrations.append(
            Migration(tuple(layer.weight for layer in group.layers), producer.path, strength, before, after)
        )
    if not (probe.unchanged() if exact else probe.nearly_unchanged(TOLERANCE)):
        for group, producer, scales in reversed(done):
            undo(group, producer, scales)
        return observations, ()
    return replace(observations, groups=tuple(reversed(groups))), tuple(reversed(migrations))


def channel_scales(largest_inputs: Tensor, largest_weights: Tensor, strength: float, rule: Rule) -> Tensor:
    """Powers of two [K] around 1. SmoothQuant: max|x|^a / max|w|^(1 - a); AWQ: mean|x|^a.

    Channels without signal get 1.
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
    """(strength, scales [count], error without them, error with them) of the strength with the least error.

    Scales are computed from one half of the texts and judged on the other: channels that are small in a few texts may
    be large in others.
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


def _search_by_rows(
    group: InputGroup, producer: Producer, recipes: list[WeightRecipe]
) -> tuple[float, Tensor, float, float]:
    """Like `_search`, for scales per row: max|x| is the row's, not the tensor's.

    So s_j follows the root mean square of channel j, and all rows have equal weight, however large their outputs are:
    otherwise a few rows of the first tokens, a thousand times larger than the others, would decide alone, although
    their errors do not matter.
    """
    matrices = [sampled_outputs(layer) for layer in group.layers]
    rows = relative(group.rows, matrices)
    middle = len(rows) // 2
    chosen, judged = (rows[:middle], rows[middle:]) if middle else (rows, rows)
    inputs = _by_channel(chosen.square().mean(0).sqrt(), producer)
    weights = _by_channel(torch.stack([layer.matrix.abs().amax(0).float() for layer in group.layers]).amax(0), producer)
    best = (0.0, torch.ones(producer.count), 0.0, 0.0)
    for strength in ROW_STRENGTHS:
        scales = _real_scales(inputs, weights, strength) if strength else best[1]
        by_input = scales[producer.spread]
        error = sum(
            output_error(judged / by_input, matrix * by_input, own)
            for matrix, own in zip(matrices, recipes, strict=True)
        )
        if not strength:
            best = (0.0, scales, error, error)
        elif error < (best[3] if best[0] else WORTH * best[2]):
            best = (strength, scales, best[2], error)
    return best


def relative(rows: Tensor, matrices: list[Tensor]) -> Tensor:
    """rows [R, K], each divided by the norm of its outputs."""
    outputs = torch.stack([(rows @ matrix.T).square().sum(1) for matrix in matrices]).sum(0).sqrt()
    least = max(MIN_OUTPUT * float(outputs.median()), torch.finfo(torch.float32).tiny)
    return rows / outputs.clamp(min=least)[:, None]


def _real_scales(inputs: Tensor, largest_weights: Tensor, strength: float) -> Tensor:
    """[K] around 1: inputs^a / max|w|^(1 - a). Channels without signal get 1."""
    alive = (inputs > 0) & (largest_weights > 0)
    if not bool(alive.any()):
        return torch.ones_like(inputs)
    exponents = strength * torch.log2(inputs) - (1 - strength) * torch.log2(largest_weights)
    exponents = torch.where(alive, exponents - exponents[alive].mean(), 0.0)
    return torch.exp2(exponents.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT))


def _by_channel(values: Tensor, producer: Producer) -> Tensor:
    """From [K] to [count]: for each channel, the largest value of the inputs that it produces."""
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
