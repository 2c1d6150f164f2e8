"""Which layers of an int4 model are stored in int8: those whose rounding changes the model's output most, per byte.

Layers that share an input get the same format, so that engines can merge them into one product.

How much rounding one layer alone changes a model's output distributions: estimated for all layers in one pass.

For small changes the KL divergence is half the quadratic form of the Fisher information: for a change e of a layer's
output, the mean of 1/2 (g . e)^2, where g is the gradient of a token's log probability and the token is drawn from the
model's own distribution (Amari 1998; for weights: Kunstner et al. 2019, arXiv 1905.12558, section 2). So one forward
and one backward pass over a text give the estimate for all layers, in any number of formats. Changes at different rows
of the text are assumed to be independent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...bundle import ELEMENT_BYTES
from .collect_activations import InputGroup, Observations
from .experts import bare_stacks, expert_layers
from .fake_quant import rounded_activations
from .formats import Float32, restore
from .layers import LinearLayer, linear_layers, tables
from .recipe import Format, WeightRecipe
from .turning import Turn, turned, worthwhile_turns

# Tokens to read in total. With 270, another mix was chosen for SmolLM2-135M, 9 % further from the exact model.
TOKENS = 1024
SEED = 0

Divergences = dict[str, dict[Format, float]]


@dataclass(frozen=True, eq=False)
class Candidates:
    """recipes: candidate recipes by the weight's name and format. turns: by the weight's name, how its inputs are
    turned in int8.

    Weights that no text reaches are missing from the result.
    """

    recipes: Mapping[str, Mapping[Format, WeightRecipe]]
    turns: Mapping[str, Turn]


def divergences(model: nn.Module, token_batches: Sequence[Tensor], candidates: Candidates) -> Divergences:
    """Mean KL divergence in nats per token, by weight and format, if only that weight were rounded.

    token_batches: each [1, T] int64, of which about TOKENS tokens are read. The same arguments give the same estimate.
    """
    state = _State(candidates)
    numbers = torch.Generator().manual_seed(SEED)
    layers = [layer for layer in linear_layers(model) if layer.weight in candidates.recipes]
    with _gradients_of_activations(model):
        hooks = [layer.module.register_forward_hook(state.hook(layer)) for layer in layers]
        try:
            for tokens in some(token_batches):
                logits = model(input_ids=tokens, use_cache=False).logits[0]  # [T, vocab]
                logits.backward(_of_drawn_tokens(logits.detach().float(), numbers).to(logits.dtype))
                state.tokens += tokens.shape[1]
        finally:
            for hook in hooks:
                hook.remove()
    return {
        name: {form: total / 2 / state.tokens for form, total in found.items()} for name, found in state.sums.items()
    }


class _State:
    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.sums: defaultdict[str, defaultdict[Format, float]] = defaultdict(lambda: defaultdict(float))
        self.tokens = 0
        # By weight and format: a weight is rounded once, however many texts are read, and kept in few bits to fit in
        # memory.
        self.rounded: dict[tuple[str, Format], tuple[npt.NDArray[Any], Float32]] = {}

    def hook(self, layer: LinearLayer) -> Any:
        def watch(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            rows = args[0].detach()
            rows = rows.reshape(-1, rows.shape[-1])
            if output.requires_grad:
                untyped: Any = output
                untyped.register_hook(lambda gradient: self.add(layer, rows.float(), gradient))

        return watch

    def add(self, layer: LinearLayer, rows: Tensor, gradient: Tensor) -> None:
        """Add one text. rows: [R, K], the layer's inputs. gradient: [..., N], at its outputs."""
        weight = layer.matrix.float()
        exact = rows @ weight.T
        gradient = gradient.reshape(exact.shape).float()
        for form, recipe in self.candidates.recipes[layer.weight].items():
            turn = self.candidates.turns.get(layer.weight) if form == "int8" else None
            if (layer.weight, form) not in self.rounded:
                matrix = turn.apply(weight) if turn else weight
                self.rounded[layer.weight, form] = recipe.quantize(np.ascontiguousarray(matrix.numpy()))
            restored = torch.from_numpy(restore(*self.rounded[layer.weight, form]))
            given = turn.apply(rows) if turn else rows
            off = rounded_activations(given, recipe) @ restored.T - exact
            self.sums[layer.weight][form] += float((off * gradient).sum(1).square().sum(dtype=torch.float64))


def _of_drawn_tokens(logits: Tensor, numbers: torch.Generator) -> Tensor:
    """The gradient [T, vocab] of the log probability of a token drawn for each row of logits."""
    probs = logits.softmax(-1)
    drawn = torch.multinomial(probs, 1, generator=numbers)
    return probs.neg_().scatter_add_(1, drawn, torch.ones_like(drawn, dtype=probs.dtype))


def some(token_batches: Sequence[Tensor]) -> list[Tensor]:
    """Every nth batch, with the smallest n that stays within TOKENS; at least one batch."""
    for step in range(1, len(token_batches) + 1):
        taken = list(token_batches[::step])
        if sum(batch.shape[-1] for batch in taken) <= TOKENS:
            return taken
    return list(token_batches[:1])


@contextmanager
def _gradients_of_activations(model: nn.Module) -> Iterator[None]:
    """Within the context, gradients reach back to the output of the token embeddings, and none are made for weights.

    What is saved for the backward pass is detached from the weights, which a model in half precision converts to fp32
    only during the forward pass.
    """
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    known: Any = model
    embeddings = known.get_input_embeddings()

    def begin(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output.detach().requires_grad_().clone()  # a clone, since a model may change it in place

    hook = embeddings.register_forward_hook(begin)
    try:
        for parameter in wanted:
            parameter.requires_grad_(False)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda saved: saved):
            yield
    finally:
        hook.remove()
        for parameter in wanted:
            parameter.requires_grad_()


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
