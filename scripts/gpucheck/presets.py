"""How much is checked: everything, or what fits into four minutes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """repetitions: of every timing. trials: of every chi-squared test. new_tokens: per generation.

    seconds: for all pairs together. prompts: generations of each kind. every_width, every_span: whether all of them are
    tried, or only the first and the last.
    """

    repetitions: int
    trials: int
    new_tokens: int
    prompts: int
    every_width: bool
    every_span: bool
    seconds: float = math.inf


FULL = Effort(repetitions=60, trials=20_000, new_tokens=64, prompts=6, every_width=True, every_span=True)
QUICK = Effort(
    repetitions=50, trials=1_000, new_tokens=32, prompts=2, every_width=False, every_span=False, seconds=240.0
)
