"""Statistics and samples of the inputs of a model's linear layers, from one pass over calibration tokens."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .fake_quant import INT8_HIGH, rounded_activations
from .layers import LinearLayer, hooked, linear_layers, stopped_at_head, tables
from .recipe import LARGEST, WeightRecipe, cast_scales

# Bounds on the number of input rows kept per group, which aims at a million elements.
SAMPLED_ROWS = (128, 512)
SAMPLED_ELEMENTS = 1 << 20
# Candidates for a static scale of activations, relative to the one that covers the largest observed magnitude.
RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, eq=False)
class InputGroup:
    """Linear layers that read the same tensor (q, k and v; gate and up), and statistics of that tensor, in fp32.

    largest: max|x|. mean_square: [K], by input channel. rows: [R, K], sampled evenly from all tokens. calls: calls of
    the layers per pass; more than one means that several places share weights.
    """

    layers: tuple[LinearLayer, ...]
    largest: float
    mean_square: Tensor
    rows: Tensor
    calls: int

    @property
    def inputs(self) -> int:
        return self.rows.shape[1]


def observe(model: nn.Module, token_batches: Sequence[Tensor]) -> list[InputGroup]:
    """Run `model` over token_batches, each [1, T] int64; the groups in the order in which the model calls them.

    Layers that no batch reaches (an image tower) are in no group. A model in half precision computes in half precision
    unless the caller wraps this in an fp32 context.
    """
    watcher = _Watcher(sum(batch.shape[-1] for batch in token_batches))
    hooks = (layer.module.register_forward_pre_hook(watcher.hook(layer)) for layer in linear_layers(model))
    with hooked(hooks), stopped_at_head(model) as run:
        for batch in token_batches:
            watcher.last.clear()
            run(batch)
    return [_group(sums, len(token_batches)) for sums in watcher.sums]


def rewritable(model: nn.Module, groups: Sequence[InputGroup]) -> list[InputGroup]:
    """The groups whose weights are used in one place only, and are not looked up as tables."""
    uses = Counter(layer.weight for group in groups for layer in group.layers)
    looked_up = tables(model)
    return [
        group
        for group in groups
        if group.calls == 1 and all(uses[layer.weight] == 1 and layer.weight not in looked_up for layer in group.layers)
    ]


def input_scale(group: InputGroup, recipe: WeightRecipe) -> float:
    """The static scale of a small grid with the least squared error of the inputs, weighted by the weights' columns.

    The largest magnitude is that of all tokens that were read, the error that of the sampled rows.
    """
    columns = torch.stack([layer.matrix.float().square().sum(0) for layer in group.layers]).sum(0)
    whole = group.largest / (INT8_HIGH if recipe.format == "int8" else LARGEST)
    if not whole > torch.finfo(torch.float32).tiny:
        return 1.0
    errors = {}
    for ratio in RATIOS:
        scale = float(cast_scales(np.array(whole * ratio, np.float32), recipe.scale_type))
        off = rounded_activations(group.rows, replace(recipe, input_scale=scale)) - group.rows
        errors[scale] = float((off.square() * columns).sum())
    return min(errors, key=lambda scale: errors[scale])


@dataclass(eq=False)
class _Sums:
    layers: list[LinearLayer]
    squares: Tensor
    largest: float = 0.0
    rows: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0


class _Watcher:
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.sums: list[_Sums] = []
        self.of: dict[str, _Sums] = {}
        # Weak references, since the id of a freed input may be reused.
        self.last: dict[int, tuple[weakref.ref[Tensor], _Sums]] = {}

    def hook(self, layer: LinearLayer) -> Any:
        return lambda module, args: self.read(layer, args[0])

    def read(self, layer: LinearLayer, tensor: Tensor) -> None:
        known = self.last.get(id(tensor))
        shared = known[1] if known is not None and known[0]() is tensor else None
        sums = self.of.get(layer.path)
        if sums is None:
            if shared is None:
                shared = _Sums([], torch.zeros(tensor.shape[-1]))
                self.sums.append(shared)
            self.of[layer.path] = sums = shared
            sums.layers.append(layer)
        if layer is sums.layers[0]:
            self.last[id(tensor)] = (weakref.ref(tensor), sums)
            self.add(sums, tensor.detach().reshape(-1, tensor.shape[-1]).float())

    def add(self, sums: _Sums, rows: Tensor) -> None:
        fewest, most = SAMPLED_ROWS
        wanted = min(max(SAMPLED_ELEMENTS // rows.shape[1], fewest), most)
        step = max(1, -(-self.tokens // wanted))
        sums.rows.append(rows[-sums.tokens % step :: step].clone())
        sums.largest = max(sums.largest, float(rows.abs().max()))
        sums.squares += rows.square().sum(0)
        sums.tokens += rows.shape[0]
        sums.calls += 1


def _group(sums: _Sums, passes: int) -> InputGroup:
    return InputGroup(
        layers=tuple(sums.layers),
        largest=sums.largest,
        mean_square=sums.squares / sums.tokens,
        rows=torch.cat(sums.rows),
        calls=-(-sums.calls // passes),
    )
