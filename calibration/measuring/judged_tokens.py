"""Draft tokens that the target judged, as arrays: the training data of `calibration/survival`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .record import Record


@dataclass(frozen=True)
class JudgedTokens:
    """n draft tokens in the order in which they were drafted, each preceded by accepted ones only.

    request `[n] int64`. round `[n] int64`, unique over all requests. index `[n] int64`: position in the draft, from 0.
    probability `[n] float32`: `top_logit` of the draft's row. confidence `[n] float32`: the draft's own, NaN
    without one. accepted `[n] bool`.
    """

    request: NDArray[np.int64]
    round: NDArray[np.int64]
    index: NDArray[np.int64]
    probability: NDArray[np.float32]
    confidence: NDArray[np.float32]
    accepted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.request)

    def of(self, chosen: NDArray[np.bool_]) -> JudgedTokens:
        """The tokens where `chosen` `[n]` holds."""
        return JudgedTokens(*(array[chosen] for array in vars(self).values()))


def judged_tokens(records: Sequence[Record]) -> JudgedTokens:
    """The judged tokens of all requests, in order."""
    numbers = [(place, item) for place, one in enumerate(records) for item in one.judged]
    rounds: dict[tuple[int, int], int] = {}
    return JudgedTokens(
        request=np.array([place for place, _ in numbers], np.int64),
        round=np.array([rounds.setdefault((place, item.round), len(rounds)) for place, item in numbers], np.int64),
        index=np.array([item.index for _, item in numbers], np.int64),
        probability=np.array([item.probability for _, item in numbers], np.float32),
        confidence=np.array([item.confidence for _, item in numbers], np.float32),
        accepted=np.array([item.accepted for _, item in numbers], np.bool_),
    )
