"""Draft tokens that the target judged, as arrays: the training data of `calibration/survival`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JudgedTokens:
    """n draft tokens in the order in which they were drafted, each preceded by accepted ones only.

    request `[n] int64`. round `[n] int64`, unique over all requests. index `[n] int64`: position in the draft, from 0.
    probability `[n] float32`: `top_logit` of the draft's row. features `[n, F] float32`: of the confidence head, F = 0
    without one. accepted `[n] bool`.
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
        """The tokens where `chosen` `[n]` holds."""
        return JudgedTokens(*(array[chosen] for array in vars(self).values()))

    def without_features(self) -> JudgedTokens:
        """The tokens with F = 0, so that `of` has no features to copy."""
        return replace(self, features=self.features[:, :0])
