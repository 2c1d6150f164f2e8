"""Draft steps of an EAGLE-3 head after every true row, as an engine runs them: over a cache, one row a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

STEPS = 3


def drafted(forward: Any, ids: Tensor) -> list[Tensor]:
    """Logits `[rows - j, m]` of each step j.

    forward: (ids, how many true rows, feedback or None, cache) to the model's output. ids `[1, rows]`: after the rows.
    """
    rows = ids.shape[1]
    found: list[list[Tensor]] = [[] for _ in range(STEPS)]
    for row in range(rows):
        cache = DynamicCache()
        output = forward(ids[:, : row + 1], row + 1, None, cache)
        for step in range(min(STEPS, rows - row)):
            if step:
                output = forward(ids[:, row + step : row + step + 1], 0, output.feedback[:, -1:], cache)
            found[step].append(output.logits[0, -1])
    return [torch.stack(logits) for logits in found]
