"""Turns a layer's inputs: an online rotation by a small Hadamard matrix, which spreads outliers over a few channels.

This is QuaRot's online rotation (Ashkboos et al. 2024, arXiv 2404.00456, section 4, stage 1c), in blocks. The output of
a gate has outliers in different channels for every token, so neither channel scales nor a rotation of the residual
stream help. The layer's weight is turned by the same matrix, so the model's outputs stay the same.

The product is fp32 and batch-invariant: each row of the input becomes several rows of the product, so kernels always
get many rows, and all terms of a block are summed in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .collect_activations import InputGroup
from .fake_quant import output_error, sampled_outputs
from .recipe import LARGEST_LIMIT, WeightRecipe
from .rotation import hadamard

# Block sizes, best first. Twice the size means 10 to 40 % less error and twice the cost of the product.
BLOCKS = (64, 32, 16)
# Turning must lower the error to this share or less: gated activations reach a tenth, attention's outputs half.
WORTH = 0.25
# The error of a row is taken relative to its output, or to this share of the median output if that is more.
MIN_OUTPUT = 1e-3
# By which turns are judged: one scale per row of the inputs.
BY_ROW = WeightRecipe("int8", limit=LARGEST_LIMIT)


class Turn:
    """A forward pre-hook: inputs [..., K] times the Hadamard matrix in blocks. It stays in the model, and is traced."""

    def __init__(self, block: int) -> None:
        self.matrix = hadamard(block)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.apply(args[0]), *args[1:]

    def apply(self, values: Tensor) -> Tensor:
        """`values` [..., K] turned, in their dtype. For a traced [1, T, K], no shape is computed in the graph."""
        turned = values.reshape(-1, self.matrix.shape[0]) @ self.matrix.to(values.dtype)
        if values.ndim == 3:
            return turned.reshape(values.shape[0], -1, values.shape[2])
        return turned.reshape(values.shape)


def worthwhile_turns(groups: Sequence[InputGroup]) -> dict[InputGroup, Turn]:
    """The groups of one layer whose inputs are worth turning in int8, for the cost of the product, and their turns.

    groups: of weights that may be changed (`rewritable`).
    """
    turns = {}
    for group in groups:
        block = next((block for block in BLOCKS if group.inputs % block == 0), 0)
        if block and len(group.layers) == 1 and _is_worth(group, turn := Turn(block)):
            turns[group] = turn
    return turns


def turned(group: InputGroup, turn: Turn) -> InputGroup:
    """Turn the inputs of the group's one layer, in place; returns the changed group.

    Its statistics are computed from the sampled rows, since nothing else is known about the turned inputs.
    """
    layer = group.layers[0]
    layer.matrix.copy_(turn.apply(layer.matrix.float()))
    layer.module.register_forward_pre_hook(turn)
    rows = turn.apply(group.rows)
    return replace(group, rows=rows, largest=float(rows.abs().max()), mean_square=rows.square().mean(0))


def _is_worth(group: InputGroup, turn: Turn) -> bool:
    matrix = sampled_outputs(group.layers[0])
    rows = relative_rows(group.rows, matrix)
    return output_error(turn.apply(rows), turn.apply(matrix), BY_ROW) < WORTH * output_error(rows, matrix, BY_ROW)


def relative_rows(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [R, K], each divided by the norm of its outputs.

    So all rows have equal weight: otherwise a few rows of the first tokens, a thousand times larger than the others,
    would decide alone, although their errors do not matter.
    """
    outputs = (rows @ matrix.T).square().sum(1).sqrt()
    least = max(MIN_OUTPUT * float(outputs.median()), torch.finfo(torch.float32).tiny)
    return rows / outputs.clamp(min=least)[:, None]
