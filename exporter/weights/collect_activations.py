"""Statistics and samples of the inputs of a model's linear layers, from one pass over calibration tokens."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
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
    tokens = sum(batch.shape[-1] for batch in token_batches)
    by_layer: dict[str, _Sums] = {}
    # Weak references, since the id of a freed input may be reused.
    last: dict[int, tuple[weakref.ref[Tensor], _Sums]] = {}

    def read(layer: LinearLayer, tensor: Tensor) -> None:
        known = last.get(id(tensor))
        shared = known[1] if known is not None and known[0]() is tensor else None
        if layer.path not in by_layer:
            by_layer[layer.path] = shared or _Sums(torch.zeros(tensor.shape[-1]))
            by_layer[layer.path].layers.append(layer)
        sums = by_layer[layer.path]
        if layer is sums.layers[0]:
            last[id(tensor)] = (weakref.ref(tensor), sums)
            sums.add(tensor.detach().reshape(-1, tensor.shape[-1]).float(), tokens)

    hooks = (layer.module.register_forward_pre_hook(_hook(read, layer)) for layer in linear_layers(model))
    with hooked(hooks), stopped_at_head(model) as run:
        for batch in token_batches:
            last.clear()
            run(batch)
    return [sums.group(len(token_batches)) for sums in dict.fromkeys(by_layer.values())]


def _hook(read: Callable[[LinearLayer, Tensor], None], layer: LinearLayer) -> Any:
    return lambda module, args: read(layer, args[0])


@dataclass(eq=False)
class _Sums:
    squares: Tensor
    layers: list[LinearLayer] = field(default_factory=list)
    largest: float = 0.0
    rows: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0

    def add(self, rows: Tensor, tokens: int) -> None:
        """tokens: that are to come in all."""
        fewest, most = SAMPLED_ROWS
        wanted = min(max(SAMPLED_ELEMENTS // rows.shape[1], fewest), most)
        step = max(1, -(-tokens // wanted))
        self.rows.append(rows[-self.tokens % step :: step].clone())
        self.largest = max(self.largest, float(rows.abs().max()))
        self.squares += rows.square().sum(0)
        self.tokens += rows.shape[0]
        self.calls += 1

    def group(self, passes: int) -> InputGroup:
        mean, calls = self.squares / self.tokens, -(-self.calls // passes)
        return InputGroup(tuple(self.layers), self.largest, mean, torch.cat(self.rows), calls)


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
