"""What rounding a language model's last layer does to its distributions, in nats."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .recipe import WeightRecipe

# Tokens of a row that carry nearly all of its probability, and rows that are looked at.
TOP = 64
ROWS = 32


def lm_head_divergence(rows: Tensor, matrix: Tensor, recipe: WeightRecipe) -> float:
    """rows: [R, K] fp32, inputs of the head; matrix: [V, K].

    The mean KL divergence of softmax(rows @ matrix.T) from itself rounded.

    Seen on each row's TOP likeliest tokens alone, so that a table of a large vocabulary is not quantized for it.
    """
    rows = rows[:: max(1, rows.shape[0] // ROWS)]
    exact, tokens = (rows @ matrix.float().T).topk(min(TOP, matrix.shape[0]))  # [R, TOP]
    used, places = torch.unique(tokens, return_inverse=True)
    restored = torch.from_numpy(recipe.restore(np.ascontiguousarray(matrix[used].float().numpy())))
    logits = torch.log_softmax((rows @ restored.T).gather(1, places), -1)
    exact = torch.log_softmax(exact, -1)
    return float((exact.exp() * (exact - logits)).sum(-1).mean())
