"""Draft tokens that the target judged, as arrays: what survival is learnt from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JudgedTokens:
    """n draft tokens, each behind nothing but accepted ones, in the order in which they were drafted.

    request `[n] int64`, round `[n] int64` (of all requests, so one number is one round), index `[n] int64` in its
    draft, from 0. probability `[n] float32`: `top_logit` of the draft's row. features `[n, F] float32`: of the
    confidence head, F = 0 without one. accepted `[n] bool`.
    """

    request: NDArray[np.int64]
    round: NDArray[np.int64]
    index: NDArray[np.int64]
    probability: NDArray[np.float32]
    features: NDArray[np.float32]
    accepted: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.request)

    def of(self, chosen: NDArray[np.bool_]) -> JudgedTokens:
        return JudgedTokens(*(array[chosen] for array in vars(self).values()))
