"""Which layers of an int4 model are stored in int8: those whose rounding changes the model's output most, per byte.

Layers that share an input get the same format, so that engines can merge them into one product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ...bundle import ELEMENT_BYTES
from .collect_activations import InputGroup, Observations
from .experts import bare_stacks, expert_layers
from .layers import LinearLayer, linear_layers, tables
from .recipe import WeightRecipe
from .sensitivity import Candidates, Divergences, divergences
from .turning import turned, worthwhile_turns

# The default budget, as a share of the bytes that all weights take in fp32. It follows from the requirement (0.22 with
# the graph and its tables), not from one model: int4 alone takes 0.16, int8 0.25.
BUDGET = 0.215
# Nats, by estimate: below that, more bytes gain little. It is a quarter of what `--precision auto` allows, since the
# estimate is made on the texts that the weights were rounded on.
ENOUGH = 0.005


@dataclass(frozen=True)
class Upgrade:
    """Layers that can be raised to int8 together: what that saves in nats, and what it costs in bytes."""

    weights: tuple[str, ...]
    saved: float
    bytes: float


def choose_upgrades(upgrades: Sequence[Upgrade], room: float, divergence: float, enough: float) -> list[Upgrade]:
    """The upgrades that save most per byte, while the remaining `divergence` is above `enough` and they fit in `room`.

    An upgrade that does not fit is skipped. Among equal ones the first is taken.
    """
    chosen = []
    for upgrade in sorted(upgrades, key=lambda one: -one.saved / one.bytes):
        if divergence <= enough or upgrade.saved <= 0:
            break
        if upgrade.bytes <= room:
            chosen.append(upgrade)
            room -= upgrade.bytes
            divergence -= upgrade.saved
    return chosen


@dataclass(frozen=True, eq=False)
class Mixed:
    """observations: of the changed model. weights: recipes of the weights that are raised. notes: what was done."""

    observations: Observations
    weights: dict[str, WeightRecipe]
    notes: tuple[str, ...]


def mix(
    model: nn.Module,
    observations: Observations,
    token_batches: Sequence[Tensor],
    weights: Mapping[str, WeightRecipe],
    raised: Callable[[InputGroup, LinearLayer], WeightRecipe],
    budget: float = BUDGET,
) -> Mixed:
    """Raise layers of an int4 model to int8, within the budget, which is a share of the bytes of all weights in fp32.

    Stacks of experts that are not in int4 count neither for the budget nor for what is used of it. weights: the recipes
    of all weights. raised: a layer's recipe in int8. Turns inputs of raised layers in place (`turning.py`), where that
    pays.
    """
    apart = _stacks_not_in_int4(model, weights)
    room = budget * bytes_of(model, {}, apart) - bytes_of(model, weights, apart)
    groups = _candidates(model, observations, weights)
    eight = {layer.weight: raised(group, layer) for group in groups for layer in group.layers}
    if not any(_more_bytes(group, weights, eight) <= room for group in groups):
        groups, eight = [], {}  # none of them fits, so their savings need not be estimated
    turns = worthwhile_turns(model, groups, token_batches[0], raised) if groups else {}
    candidates = Candidates(
        {name: {"int4": weights[name], "int8": own} for name, own in eight.items()},
        {group.layers[0].weight: turn for group, turn in turns.items()},
    )
    found = divergences(model, token_batches, candidates) if eight else {}
    upgrades = [_upgrade(group, weights, eight, found) for group in groups]
    before = sum(own["int4"] for own in found.values())
    taken = {name for upgrade in choose_upgrades(upgrades, room, before, ENOUGH) for name in upgrade.weights}
    mixed = {name: eight[name] for name in taken}
    notes = []
    if apart:
        part = bytes_of(model, {**weights, **mixed}) / bytes_of(model, {})
        notes.append(f"experts are not in int4, nor in its budget: all weights take {part:.3f} of their bytes in fp32")
    if not taken:
        return Mixed(observations, {}, tuple(notes))
    after = sum(own["int8" if name in taken else "int4"] for name, own in found.items())
    notes.append(
        f"{len(taken)} of {len(found)} layers are kept in int8, where int4 costs most: by estimate {after:.4f} nats "
        f"instead of {before:.4f} on the calibration texts"
    )
    chosen = {group: turns[group] for group in turns if group.layers[0].weight in taken}
    changed = {group: turned(group, turn) for group, turn in chosen.items()}
    if chosen:
        notes.append(f"of these, {len(chosen)} rotate their inputs by Hadamard matrices at run time")
    kept = tuple(changed.get(group, group) for group in observations.groups)
    return Mixed(replace(observations, groups=kept), mixed, tuple(notes))


def _stacks_not_in_int4(model: nn.Module, weights: Mapping[str, WeightRecipe]) -> set[str]:
    """Stacks of experts, bare ones too, that are stored in another format: the other weights need not make up for the
    bytes that int4 does not save on them.
    """
    stacks = {layer.weight for layer in expert_layers(model)} | set(bare_stacks(model))
    return {name for name in stacks if name not in weights or weights[name].format != "int4"}


def _candidates(model: nn.Module, observations: Observations, weights: Mapping[str, WeightRecipe]) -> list[InputGroup]:
    """Groups in int4 whose weights are used in one place only, and are not looked up as tables."""
    uses = Counter(layer.weight for group in observations.groups for layer in group.layers)
    looked_up = tables(model)
    return [
        group
        for group in observations.groups
        if group.calls == 1
        and all(
            uses[layer.weight] == 1 and layer.weight not in looked_up and weights[layer.weight].format == "int4"
            for layer in group.layers
        )
    ]


def _upgrade(
    group: InputGroup, weights: Mapping[str, WeightRecipe], eight: Mapping[str, WeightRecipe], found: Divergences
) -> Upgrade:
    names = [layer.weight for layer in group.layers]
    saved = sum(found[name]["int4"] - found[name]["int8"] for name in names if name in found)
    return Upgrade(tuple(names), saved, _more_bytes(group, weights, eight))


def _more_bytes(group: InputGroup, weights: Mapping[str, WeightRecipe], eight: Mapping[str, WeightRecipe]) -> float:
    return sum(
        eight[layer.weight].stored_bytes(*layer.matrix.shape) - weights[layer.weight].stored_bytes(*layer.matrix.shape)
        for layer in group.layers
    )


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
