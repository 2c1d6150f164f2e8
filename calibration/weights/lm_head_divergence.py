"""How quantizing the LM head alone changes a model's output distributions, in nats."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .recipe import WeightRecipe

# The number of most likely tokens compared per row, which have nearly all of its probability, and of rows compared.
TOP = 64
ROWS = 32


def lm_head_divergence(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """Mean KL divergence of softmax(rows @ matrix.T) from the same with a quantized matrix.

    rows: [R, K] fp32, inputs of the LM head. matrix: [V, K]. Only over each row's TOP most likely tokens, so that the
    whole matrix of a large vocabulary need not be quantized for it.
    """
    rows = rows[:: max(1, rows.shape[0] // ROWS)]
    exact, tokens = (rows @ matrix.float().T).topk(min(TOP, matrix.shape[0]))  # [R, TOP]
    used, places = torch.unique(tokens, return_inverse=True)
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix[used].float().numpy())))
    logits = torch.log_softmax((rows @ restored.T).gather(1, places), -1)
    exact = torch.log_softmax(exact, -1)
    return float((exact.exp() * (exact - logits)).sum(-1).mean())
