"""How probable it is that a draft token is accepted, by the confidence that its draft tells before the token is drawn.

`survival.json` in the bundle, by draft.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

SURVIVAL = "survival.json"
SURVIVAL_VERSION = 3


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

    curves: from the draft's confidence, see `OpenedDraft`; by position in the draft, the last one for all further
    positions. bundle: `bundle_identity`.
    """

    schema_version: int
    bundle: str
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        if self.schema_version != SURVIVAL_VERSION:
            raise ValueError(f"schema version {self.schema_version}, this specexport reads {SURVIVAL_VERSION}")
        if not self.curves:
            raise ValueError("there is no curve")

    def chance(self, index: int, confidence: float) -> float:
        """The probability of draft token `index`, from 0."""
        return self.curves[min(index, len(self.curves) - 1)](confidence)
