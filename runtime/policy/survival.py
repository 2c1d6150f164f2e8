"""How probable it is that a draft token is accepted, read off while drafting. `survival.json` in the bundle, by draft.

Nothing here looks at a token that may still be left out of the draft, only at the distribution that it is drawn from
(docs/losslessness.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..sampling.distribution import Row

SURVIVAL = "survival.json"
SURVIVAL_VERSION = 2

# Probabilities nearer to 0 or 1 carry no more information than these.
LOGIT_LIMIT = 12.0
# Beyond these, float32 might overflow, or lose small values.
LARGEST_EXPONENT = 60.0

Signal = Literal["probability", "confidence"]


@dataclass(frozen=True)
class Curve:
    """A probability as a function of a logit: linear between the points, constant beyond them."""

    logits: tuple[float, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.logits, self.logits[1:], strict=False))
        if (
            not self.logits
            or len(self.logits) != len(self.chances)
            or not rising
            or not all(map(math.isfinite, self.logits))
        ):
            raise ValueError(
                f"{len(self.logits)} logits and {len(self.chances)} chances are not a curve; logits must increase"
            )
        if not all(0 <= chance <= 1 for chance in self.chances):
            raise ValueError("a chance of a curve is not a probability")

    def __call__(self, logit: float) -> float:
        if math.isnan(logit):
            return self.chances[0]
        above = bisect_right(self.logits, logit)
        if above in (0, len(self.logits)):
            return self.chances[max(0, above - 1)]
        low, high = self.logits[above - 1], self.logits[above]
        share = (logit - low) / (high - low)
        return self.chances[above - 1] + share * (self.chances[above] - self.chances[above - 1])


@dataclass(frozen=True)
class Survival:
    """The probability that a draft token is accepted when all before it are.

    signal: input of the curves. `probability`: the logit of the draft's largest probability; `confidence`: what a
    draft was trained to tell, see `OpenedDraft`. curves: by position in the draft, the last one for all further
    positions. bundle: `bundle_identity`.
    """

    schema_version: int
    bundle: str
    signal: Signal
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        if self.schema_version != SURVIVAL_VERSION:
            raise ValueError(f"schema version {self.schema_version}, this specexport reads {SURVIVAL_VERSION}")
        if not self.curves:
            raise ValueError("there is no curve")

    def chance(self, index: int, logit: float) -> float:
        """The probability of draft token `index`, from 0, for this value of the signal."""
        return self.curves[min(index, len(self.curves) - 1)](logit)


def top_logit(row: Row) -> float:
    """The logit of the largest probability of softmax(row), `[vocab] float32`: log(p / (1 - p)), within `LOGIT_LIMIT`.

    NaN where the row holds one, or nothing finite.
    """
    # Reads the row as seldom as possible: between two passes each read finds the CPU's caches cold.
    best = row.argmax()  # of NaN, where there is one
    top = float(row[best])
    if not math.isfinite(top):
        return math.nan
    parts = np.exp(row) if abs(top) < LARGEST_EXPONENT else np.exp(row - row[best])
    largest = float(parts[best])
    others = float(np.add.reduce(parts)) - largest
    if others <= 0.0:
        return LOGIT_LIMIT
    return max(-LOGIT_LIMIT, min(LOGIT_LIMIT, math.log(largest / others)))
