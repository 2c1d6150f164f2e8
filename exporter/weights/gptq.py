"""GPTQ: rounds weights such that a layer's outputs change least, not its weights.

Frantar et al. 2022, arXiv 2210.17323, section 3: columns are rounded one after the other, and later columns compensate
for the error of a column, as far as their inputs are correlated in the calibration texts.

All texts go through the model in one batch, so that a layer gets all of its inputs in one call. Their Gram matrix is
computed, used for the layers that share the inputs, and dropped, so there is only one in memory at a time. Of a stack,
each expert is rounded on the rows that are routed to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .experts import ExpertLayer, expert_layers
from .layers import LinearLayer, hooked, linear_layers, stopped_at_head
from .recipe import Float32, Int8, WeightRecipe

# What is added to the diagonal, relative to its mean. The paper has 0.01, for 262 144 tokens; with a hundredth of them,
# that overfits the weights to these few (docs/quantization.md).
DAMPING = 0.3
# Columns whose updates are gathered before they are applied to the later columns.
COLUMNS = 64
# Rows of a triangular matrix that are inverted at once.
SMALL = 128
# The most tokens times the inputs of the widest layer: more would need memory without reducing errors.
MAX_ELEMENTS = 1 << 25


def inverse_factor(rows: Tensor, damping: float = DAMPING) -> Tensor | None:
    """The upper Cholesky factor of the damped inverse of X^T X, [K, K]; None where it has none. rows: X, [R, K].

    Inputs that are 0 in all texts only have the damping, so their columns do not affect the others.
    """
    rows = rows.float()
    gram = rows.T @ rows
    mean = float(gram.diagonal().mean())
    if not (0 < mean < float("inf")):
        return None
    gram.diagonal().add_(damping * mean)
    # With rows and columns in reverse order, the lower factor becomes an upper one, U: damped = U U^T, and the factor
    # of the inverse is U^-1. This takes half the operations of computing the inverse first.
    lower, failed = torch.linalg.cholesky_ex(gram.flip(0, 1))
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


def rounded(weight: Tensor, factor: Tensor, recipe: WeightRecipe) -> tuple[Int8, Float32]:
    """Values [N, K] and scales ([N], or [N, K / block] of int4) of a weight [N, K] fp32 in int8 or int4.

    factor: from `inverse_factor`. The scales are those of `recipe` for rounding to nearest; those of a block are chosen
    when the block is reached, on the weights as they are then.
    """
    outputs, inputs = weight.shape
    work = weight.T.contiguous().clone()  # [K, N]: a column of the weight is contiguous
    values = torch.empty(inputs, outputs, dtype=torch.int8)
    size = recipe.block or inputs
    by_block = []
    for block in range(0, inputs, size):
        end = block + size
        importance = None if recipe.importance is None else recipe.importance[block:end]
        of_block = replace(recipe, block=0, importance=importance)
        by_block.append(of_block.scales(np.ascontiguousarray(work[block:end].T.numpy())))
        scales = torch.from_numpy(by_block[-1])
        for start in range(block, end, COLUMNS):
            stop = min(start + COLUMNS, end)
            errors = _round_columns(
                work[start:stop], values[start:stop], factor[start:stop, start:stop], scales, recipe.bounds
            )
            work[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return np.ascontiguousarray(values.T.numpy()), np.stack(by_block, 1) if recipe.block else by_block[0]


def _round_columns(work: Tensor, values: Tensor, factor: Tensor, scales: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Round columns [C, N] in place of `values`; returns their errors over the factor's diagonal, [C, N]."""
    errors = torch.empty_like(work)
    diagonal = factor.diagonal().tolist()
    for column in range(work.shape[0]):
        exact = work[column]
        nearest = (exact / scales).round_().clamp_(*bounds)
        values[column] = nearest
        torch.sub(exact, nearest.mul_(scales), out=errors[column]).div_(diagonal[column])
        if column + 1 < work.shape[0]:
            work[column + 1 :].addr_(factor[column, column + 1 :], errors[column], alpha=-1)
    return errors


@dataclass(frozen=True)
class GptqResult:
    """weights: recipes with their integers (`stored`). fitted: how many of the `experts` of all stacks GPTQ rounded."""

    weights: dict[str, WeightRecipe]
    fitted: int
    experts: int


def choose_integers(
    model: nn.Module, token_batches: Sequence[Tensor], recipes: Mapping[str, WeightRecipe], damping: float = DAMPING
) -> GptqResult:
    """The integers of the weights `recipes`, in int8 or int4, each used in one place only; none if no text reaches it.

    token_batches: each [1, T] int64. damping: relative to the mean of the Gram matrix's diagonal.
    """
    layers = [layer for layer in linear_layers(model) if layer.weight in recipes]
    stacks = [layer for layer in expert_layers(model) if layer.weight in recipes]
    if not layers and not stacks:
        return GptqResult({}, 0, 0)
    of_all: list[LinearLayer] = [*layers, *stacks]
    tokens, lengths = together(token_batches, max(layer.matrix.shape[1] for layer in of_all))
    state = _State(torch.arange(tokens.shape[1])[None] < lengths[:, None], recipes, damping)
    hooks = [layer.module.register_forward_pre_hook(_hook(state.choose, layer)) for layer in layers]
    hooks += [layer.module.register_forward_pre_hook(_hook(state.choose_for_stack, layer)) for layer in stacks]
    with hooked(hooks), stopped_at_head(model) as run:
        run(tokens)
    return GptqResult(state.weights, state.fitted, sum(len(layer.module.weight) for layer in stacks))


def _hook(choose: Callable[..., None], layer: LinearLayer) -> Any:
    return lambda module, args: choose(layer, *args)


class _State:
    """used: [B, T], False for padding."""

    def __init__(self, used: Tensor, recipes: Mapping[str, WeightRecipe], damping: float) -> None:
        self.used, self.recipes, self.damping = used, recipes, damping
        self.weights: dict[str, WeightRecipe] = {}
        self.fitted = 0
        self.last: tuple[weakref.ref[Tensor], Tensor | None] | None = None

    def choose(self, layer: LinearLayer, inputs: Tensor) -> None:
        """inputs: the rows of all tokens, [B, T, K], [B, 1, T, K] or [B T, K]. A layer that gets others, such as those
        that are routed to it, is left as it is.
        """
        if inputs.shape[:-1].numel() != self.used.numel():
            return
        if self.last is None or self.last[0]() is not inputs:
            rows = inputs.detach().flatten(0, -2)[self.used.flatten()]
            self.last = weakref.ref(inputs), inverse_factor(rows, self.damping)
        if (factor := self.last[1]) is not None:
            recipe = self.recipes[layer.weight]
            self.weights[layer.weight] = replace(recipe, stored=rounded(layer.matrix.float(), factor, recipe))

    def choose_for_stack(self, layer: ExpertLayer, rows: Tensor, experts: Tensor) -> None:
        """rows: [B T k, K], for each token one row for each of its k experts. experts: [B T k].

        An expert that fewer rows reach than it has inputs is rounded to nearest, since some directions of its inputs
        were not seen at all (docs/internals/log.md). A stack with only such experts is left as it is.
        """
        recipe, weights = self.recipes[layer.weight], layer.module.weight.data
        used = self.used.flatten().repeat_interleave(len(rows) // self.used.numel())
        reached = torch.bincount(experts[used], minlength=len(weights)).tolist()
        if max(reached) < rows.shape[1]:
            return
        parts, fitted = [], 0
        for expert, weight in enumerate(weights):
            enough = reached[expert] >= rows.shape[1]
            factor = inverse_factor(rows.detach()[used & (experts == expert)], self.damping) if enough else None
            if factor is None:
                parts.append(recipe.quantize(weight.float().numpy()))
            else:
                parts.append(rounded(weight.float(), factor, recipe))
                fitted += 1
        if fitted:
            self.fitted += fitted
            values, scales = zip(*parts, strict=True)
            self.weights[layer.weight] = replace(recipe, stored=(np.concatenate(values), np.concatenate(scales)))


def together(token_batches: Sequence[Tensor], widest: int) -> tuple[Tensor, Tensor]:
    """(tokens [B, T], lengths [B]): evenly chosen texts, padded at the end, where their own tokens do not attend."""
    total = sum(batch.shape[-1] for batch in token_batches)
    step = max(1, -(-total * widest // MAX_ELEMENTS))
    texts = [batch[0] for batch in token_batches[::step]]
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])
