"""Repeated, interleaved measurements, reported by their median and spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Sample = Callable[[], float]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Spread:
    """The median of `repetitions` measurements, and the range that contains four of five of them."""

    median: float
    low: float
    high: float
    repetitions: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        low, median, high = np.percentile(values, [10, 50, 90]).tolist()
        return cls(median, low, high, len(values))


def interleaved(samples: Mapping[Key, Sample], repetitions: int) -> dict[Key, Spread]:
    """Take every sample `repetitions` times, interleaved, so that clocks and heat affect all of them equally."""
    values: dict[Key, list[float]] = {key: [] for key in samples}
    for _ in range(repetitions):
        for key, sample in samples.items():
            values[key].append(sample())
    return {key: Spread.of(found) for key, found in values.items()}
