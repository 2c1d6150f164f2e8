"""Repeated measurements: taken in turn, and told by their median and spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Sample = Callable[[], float]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Spread:
    """Of `repetitions` measurements: the median, and between which values four of five lie."""

    median: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        low, median, high = np.percentile(values, [10, 50, 90]).tolist()
        return cls(median, low, high, len(values))


def interleaved(samples: Mapping[Key, Sample], repetitions: int) -> dict[Key, Spread]:
    """Every sample `repetitions` times, one of each in turn, so that clocks and heat meet all of them alike."""
    values: dict[Key, list[float]] = {key: [] for key in samples}
    for _ in range(repetitions):
        for key, sample in samples.items():
            values[key].append(sample())
    return {key: Spread.of(found) for key, found in values.items()}
