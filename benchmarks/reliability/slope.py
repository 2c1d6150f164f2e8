"""Does a series grow? Fits a line, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCKS = 20
DRAWS = 2000


@dataclass(frozen=True)
class Slope:
    """The slope per hour, with a 95 % interval. start: the line's value at its beginning."""

    per_hour: float
    low: float
    high: float
    start: float

    @property
    def flat(self) -> bool:
        """Whether there is no significant growth: the interval reaches down to zero."""
        return self.low <= 0


def fit(seconds: Sequence[float], values: Sequence[float], skip: float = 0.25, seed: int = 0) -> Slope:
    """Fit a line by least squares, without the first part `skip`, the warm-up.

    The interval resamples the residuals in blocks of consecutive samples, since neighbours are correlated: memory
    changes in steps. It says nothing about changes that take longer than the run.
    """
    begin = int(len(seconds) * skip)
    times, found = np.asarray(seconds[begin:], float) / 3600, np.asarray(values[begin:], float)
    if len(times) < BLOCKS:
        raise ValueError(f"{len(times)} samples are too few for a slope with an interval; {BLOCKS} are needed")
    if not np.ptp(found):
        return Slope(0.0, 0.0, 0.0, float(found[0]))
    slope, offset = np.polyfit(times, found, 1)
    line = offset + slope * times
    residuals, size = found - line, max(len(times) // BLOCKS, 1)
    chance, slopes = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        starts = chance.integers(0, len(times) - size + 1, -(-len(times) // size))
        drawn = np.concatenate([residuals[start : start + size] for start in starts])[: len(times)]
        slopes.append(np.polyfit(times, line + drawn, 1)[0])
    low, high = np.quantile(slopes, (0.025, 0.975))
    return Slope(float(slope), float(low), float(high), float(line[0]))
