"""Which layers of an int4 model are stored in int8: those whose rounding changes the model's output most, per byte.

Layers that share an input get the same format, so that engines can merge them into one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import Tensor, nn

from ...bundle import ELEMENT_BYTES, MIXED, Format
from .collect_activations import InputGroup, rewritable
from .experts import bare_stacks, expert_layers
from .layers import LinearLayer, linear_layers
from .recipe import WeightRecipe
from .sensitivity import divergences
from .turning import turned, worthwhile_turns

# The default budget, as a share of the bytes that all weights take in fp32. It follows from the requirement (0.22 with
# the graph and its tables), not from one model: int4 alone takes 0.16, int8 0.25.
BUDGET = 0.215
# Nats, by estimate: below that, more bytes gain little. The estimate is made on the texts that the weights were rounded
# on, and is too low for others.
ENOUGH = 0.005


@dataclass(frozen=True)
class Upgrade:
    """Layers that can be raised to int8 together: what that saves in nats, and what it costs in bytes."""

    weights: tuple[str, ...]
    saved: float
    bytes: float


def choose_upgrades(upgrades: Sequence[Upgrade], bytes_left: float, divergence: float, enough: float) -> list[Upgrade]:
    """The upgrades that save most per byte and fit in `bytes_left`, while the `divergence` left is above `enough`.

    An upgrade that does not fit is skipped. Among equal ones the first is taken.
    """
    chosen = []
    for upgrade in sorted(upgrades, key=lambda one: -one.saved / one.bytes):
        if divergence <= enough or upgrade.saved <= 0:
            break
        if upgrade.bytes <= bytes_left:
            chosen.append(upgrade)
            bytes_left -= upgrade.bytes
            divergence -= upgrade.saved
    return chosen


def mix(
    model: nn.Module,
    groups: Sequence[InputGroup],
    token_batches: Sequence[Tensor],
    weights: Mapping[str, WeightRecipe],
    raised: Callable[[InputGroup, LinearLayer], WeightRecipe],
    budget: float = BUDGET,
    turning: bool = True,
) -> tuple[dict[str, WeightRecipe], list[str]]:
    """Raise layers of an int4 model to int8, within the budget, which is a share of the bytes of all weights in fp32.
    Returns the recipes of the weights that are raised, and notes of what was done.

    Stacks of experts that are not in int4 count neither for the budget nor for what is used of it. weights: the recipes
    of all weights. raised: a layer's recipe in int8. turning: turn inputs of raised layers in place (`turning.py`),
    where that pays.
    """
    apart = _stacks_not_in_int4(model, weights)
    bytes_left = budget * bytes_of(model, {}, apart) - bytes_of(model, weights, apart)
    groups = [
        group
        for group in rewritable(model, groups)
        if all(weights[layer.weight].format == "int4" for layer in group.layers)
    ]
    int8 = {layer.weight: raised(group, layer) for group in groups for layer in group.layers}
    costs = [
        sum(
            int8[one.weight].stored_bytes(*one.matrix.shape) - weights[one.weight].stored_bytes(*one.matrix.shape)
            for one in group.layers
        )
        for group in groups
    ]
    if min(costs, default=0.0) > bytes_left:
        groups, int8, costs = [], {}, []  # none of them fits, so their savings need not be estimated
    turns = worthwhile_turns(groups) if turning and groups else {}
    candidates: dict[str, dict[Format, WeightRecipe]] = {
        name: {"int4": weights[name], "int8": recipe} for name, recipe in int8.items()
    }
    by_weight = {group.layers[0].weight: turn for group, turn in turns.items()}
    estimates = divergences(model, token_batches, candidates, by_weight) if int8 else {}
    saved = {name: nats["int4"] - nats["int8"] for name, nats in estimates.items()}
    names = [tuple(layer.weight for layer in group.layers) for group in groups]
    upgrades = [
        Upgrade(of, sum(saved.get(name, 0.0) for name in of), cost) for of, cost in zip(names, costs, strict=True)
    ]
    before = sum(nats["int4"] for nats in estimates.values())
    taken = {name for upgrade in choose_upgrades(upgrades, bytes_left, before, ENOUGH) for name in upgrade.weights}
    mixed = {name: int8[name] for name in taken}
    notes = []
    if apart:
        part = bytes_of(model, {**weights, **mixed}) / bytes_of(model, {})
        notes.append(f"experts are not in int4, nor in its budget: all weights take {part:.3f} of their bytes in fp32")
    if taken:
        after = sum(nats["int8" if name in taken else "int4"] for name, nats in estimates.items())
        notes.append(
            f"{len(taken)} of {len(estimates)} {MIXED}, where int4 costs most: by estimate {after:.4f} nats instead of "
            f"{before:.4f} on the calibration texts"
        )
    if chosen := {group: turn for group, turn in turns.items() if group.layers[0].weight in taken}:
        for group, turn in chosen.items():
            turned(group, turn)
        notes.append(f"of these, {len(chosen)} rotate their inputs by Hadamard matrices at run time")
    return mixed, notes


def _stacks_not_in_int4(model: nn.Module, weights: Mapping[str, WeightRecipe]) -> set[str]:
    """Stacks of experts, bare ones too, that are stored in another format: the other weights need not make up for the
    bytes that int4 does not save on them.
    """
    stacks = {layer.weight for layer in expert_layers(model)} | set(bare_stacks(model))
    return {name for name in stacks if name not in weights or weights[name].format != "int4"}


def bytes_of(model: nn.Module, weights: Mapping[str, WeightRecipe], without: Set[str] = frozenset()) -> float:
    """Bytes of all parameters except `without`. A weight that is looked up in one form and multiplied in another counts
    once.
    """
    transposed = {layer.weight for layer in linear_layers(model) if layer.transposed}
    total = 0.0
    for name, parameter in model.named_parameters():
        recipe = weights.get(name)
        if name in without:
            continue
        if recipe is None or recipe.format == "float":
            total += parameter.numel() * ELEMENT_BYTES["fp32"]
        else:
            inputs = parameter.shape[0 if name in transposed else -1]
            total += recipe.stored_bytes(parameter.numel() // inputs, inputs)
    return total
