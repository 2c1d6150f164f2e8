"""Rounds weights by GPTQ, which minimizes the change of a layer's outputs, not that of its weights.

Frantar et al. 2022, arXiv 2210.17323, section 3: columns are rounded one after the other, and later columns compensate
for the error of a column, as far as their inputs are correlated in the calibration texts.

Chooses the integers of a whole model's layers by GPTQ, in one pass over the calibration texts.

All texts go through the model in one batch, so that a layer gets all of its inputs in one call. Their Gram matrix is
computed, used for the layers that share the inputs, and dropped, so there is only one in memory at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .formats import INT4_HIGH, INT4_LOW, Float32, Int8, int4_blocks, per_output
from .layers import LinearLayer, linear_layers, stopped_at_head
from .recipe import WeightRecipe

# The default of what is added to the diagonal, relative to its mean. The paper has 0.01, for 262 144 tokens; with a
# hundredth of them, that overfits the weights to these few (docs/quantization.md).
DAMPING = 0.3
# Columns whose updates are gathered before they are applied to the later columns.
COLUMNS = 64
# Rows of a triangular matrix that are inverted at once.
SMALL = 128
ScaleCast = Callable[[Float32], Float32]


def identity_scales(scales: Float32) -> Float32:
    return scales


def inverse_factor(gram: Tensor, damping: float = DAMPING) -> Tensor | None:
    """The upper Cholesky factor of the damped inverse of X^T X, [K, K]; None for a matrix that has none.

    Inputs that are 0 in all texts only have the damping, so their columns do not affect the others.
    """
    diagonal = gram.diagonal()
    mean = float(diagonal.mean())
    if not (0 < mean < float("inf")):
        return None
    damped = gram + torch.eye(gram.shape[0]) * (damping * mean)
    # With rows and columns in reverse order, the lower factor becomes an upper one, U: damped = U U^T, and the factor
    # of the inverse is U^-1. This takes half the operations of computing the inverse first.
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    return None if int(failed) else _upper_inverse(lower.flip(0, 1))


def _upper_inverse(upper: Tensor) -> Tensor:
    """The inverse of an upper triangular matrix, by recursive halving: matrix products, while a solver would also
    multiply the zeros.
    """
    size = upper.shape[0]
    if size <= SMALL:
        inverse: Tensor = torch.linalg.solve_triangular(upper, torch.eye(size), upper=True)
        return inverse
    half = size // 2
    inverse = torch.zeros_like(upper)
    first, last = _upper_inverse(upper[:half, :half]), _upper_inverse(upper[half:, half:])
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[:half, half:] = -(first @ (upper[:half, half:] @ last))
    return inverse


def rounded(
    weight: Tensor, factor: Tensor, recipe: WeightRecipe, scale_cast: ScaleCast = identity_scales
) -> tuple[Int8, Float32]:
    """Values [N, K] and scales ([N], or [N, K / block] of int4) of a weight [N, K] fp32 in int8 or int4.

    factor: from `inverse_factor`. hold: rounds scales to the graph's type, before weights are rounded with them. The
    scales are those of `recipe` for rounding to nearest; those of a block are chosen when the block is reached, on the
    weights as they are then.
    """
    outputs, inputs = weight.shape
    work = weight.T.contiguous().clone()  # [K, N]: a column of the weight is contiguous
    values = torch.empty(inputs, outputs, dtype=torch.int8)
    if recipe.format == "int8":
        low, high, size = -recipe.limit, recipe.limit, inputs
    else:
        low, high, size = INT4_LOW, INT4_HIGH, recipe.block or inputs
    found = []
    for block in range(0, inputs, size):
        scales = scale_cast(_scales(work[block : block + size], recipe, slice(block, block + size)))
        found.append(scales)
        divisor = torch.from_numpy(scales)
        for start in range(block, block + size, COLUMNS):
            end = min(start + COLUMNS, block + size)
            errors = _round_columns(
                work[start:end], values[start:end], factor[start:end, start:end], divisor, low, high
            )
            work[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    by_output = np.ascontiguousarray(values.T.numpy())
    return by_output, found[0] if recipe.format == "int8" or not recipe.block else np.stack(found, 1)


def _round_columns(work: Tensor, values: Tensor, factor: Tensor, scales: Tensor, low: int, high: int) -> Tensor:
    """Round columns [C, N] in place of `values`; returns their errors over the factor's diagonal, [C, N]."""
    errors = torch.empty_like(work)
    diagonal = factor.diagonal().tolist()
    for column in range(work.shape[0]):
        exact = work[column]
        nearest = (exact / scales).round_().clamp_(low, high)
        values[column] = nearest
        torch.sub(exact, nearest.mul_(scales), out=errors[column]).div_(diagonal[column])
        if column + 1 < work.shape[0]:
            work[column + 1 :].addr_(factor[column, column + 1 :], errors[column], alpha=-1)
    return errors


def _scales(columns: Tensor, recipe: WeightRecipe, inputs: slice) -> Float32:
    """The scales [N] for columns [C, N] of the weight."""
    weight = np.ascontiguousarray(columns.T.numpy())
    if recipe.format == "int8":
        return per_output(weight, recipe.limit)
    importance = None if recipe.importance is None else recipe.importance[inputs]
    return int4_blocks(weight, 0, importance, recipe.signed)[1]


# The most tokens times the inputs of the widest layer: more would need memory without reducing errors.
MAX_ELEMENTS = 1 << 25


def choose_integers(
    model: nn.Module,
    token_batches: Sequence[Tensor],
    recipes: Mapping[str, WeightRecipe],
    names: Iterable[str],
    scale_cast: ScaleCast = identity_scales,
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
    state = _State(used, recipes, scale_cast, damping)
    hooks = [layer.module.register_forward_pre_hook(state.hook(layer)) for layer in layers]
    try:
        with stopped_at_head(model) as run:
            run(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return state.found


class _State:
    def __init__(
        self, used: Tensor, recipes: Mapping[str, WeightRecipe], scale_cast: ScaleCast, damping: float
    ) -> None:
        self.used, self.recipes, self.scale_cast, self.damping = used, recipes, scale_cast, damping
        self.found: dict[str, WeightRecipe] = {}
        self.last: tuple[weakref.ref[Tensor], Tensor | None] | None = None

    def hook(self, layer: LinearLayer) -> Any:
        def read(module: nn.Module, args: tuple[Any, ...]) -> None:
            recipe = self.recipes[layer.weight]
            factor = self.factor(args[0])
            if factor is not None:
                self.found[layer.weight] = replace(
                    recipe, stored=rounded(layer.matrix.float(), factor, recipe, self.scale_cast)
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
    step = max(1, -(-total * widest // MAX_ELEMENTS))
    texts = [batch[0] for batch in token_batches[::step]]
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])
