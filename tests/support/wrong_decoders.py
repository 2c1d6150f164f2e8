"""Decoders that are wrong in ways that a comparison of outputs must see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .doubles import VOCAB, FakeDecoder


class WidthDependent(FakeDecoder):
    """Two ids lead every row by far and lie `gap` apart; passes wider than one token move the second up by `shift`."""

    gap, shift, width = 1e-4, 0.0, 1

    def step(self, tokens: Sequence[int], position: int) -> np.ndarray:
        self.width = len(tokens)
        return super().step(tokens, position)

    def logits_after(self, context: Sequence[float] | np.ndarray) -> np.ndarray:
        logits = super().logits_after(context).copy()
        first = int(logits.argmax())
        logits[first] = 50.0
        logits[(first + 1) % VOCAB] = 50.0 - self.gap + (self.shift if self.width > 1 else 0.0)
        return logits


class SeesStaleRows(FakeDecoder):
    def seen(self, row: int) -> np.ndarray:
        return self.rows[: row + 4]
