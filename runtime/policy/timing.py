"""How much longer rounds take than costs say, learnt from the rounds themselves.

Costs may be wrong: measured in half a second on a host that was busy, or at another length of the sequence. But a
host's speed varies too, so the time of one round says little. A Kalman filter (Kalman 1960) tells the two apart. Its
state is the logarithm of the host's slowness, which drifts, and for each number of draft tokens that of how much longer
such a round takes than costs say, relative to a plain one: rounds that follow each other differ by the latter alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

# Time for exploring that there is at first, in plain rounds.
START = 6.0
# All of these were chosen in a simulation (docs/internals/log.md, "Wrong costs").
# Standard deviations. What costs are off by, in logarithms: for all numbers of draft tokens in common, and each alone;
# and, relative, the time that a draft takes.
COMMON, ALONE, DRAFT = 0.2, 0.1, 0.7
# What the slowness changes by from round to round and from request to request, and what costs do in a round.
DRIFT, PAUSE, AGING = 0.05, 1.0, 0.002
# The noise of one round, and by how many standard deviations a round counts at most, since some are disturbed.
NOISE, CLIP = 0.1, 2.0
# Costs are taken for lower by so many standard deviations, since what is never tried would stay uncertain.
OPTIMISM = 0.3


class Timing:
    """Of one session and drafter.

    factors: by number of draft tokens, what to multiply the cost of a round by; 1 for a plain one. budget: plain rounds
    saved up for exploring.
    """

    def __init__(self, rounds: Sequence[float], clock: Callable[[], float] = perf_counter) -> None:
        """rounds: what they cost, by number of draft tokens."""
        self.clock, self.budget = clock, START
        self._mean = np.zeros(len(rounds))  # first the host's slowness
        drafting = 1.0 - rounds[0] / np.array(rounds)  # the share of a draft in a round
        self._covariance = DRAFT**2 * np.outer(drafting, drafting)
        self._covariance[1:, 1:] += COMMON**2 + ALONE**2 * np.eye(len(rounds) - 1)
        self._aging = np.diag([DRIFT**2] + [AGING**2] * (len(rounds) - 1))
        self.factors = self._factors()
        self.pause()

    def pause(self) -> None:
        """The next round that is observed does not follow the last one."""
        self._covariance[0, 0] += PAUSE**2

    def uncertainty(self, drafted: int) -> float:
        """The standard deviation of a factor's logarithm."""
        return math.sqrt(self._covariance[drafted, drafted]) if drafted else 0.0

    def observe(self, drafted: int, seconds: float, expected: float) -> None:
        """expected: seconds by costs of this round, which had `drafted` draft tokens."""
        if not seconds > 0.0:  # a coarse clock
            return
        mean, covariance = self._mean, self._covariance
        covariance += self._aging
        # A plain round shows the slowness alone, any other one the sum of two of the state.
        gain = covariance[0] + covariance[drafted] if drafted else covariance[0].copy()
        variance = float(gain[0] + gain[drafted] if drafted else gain[0]) + NOISE**2
        error = math.log(seconds / expected) - float(mean[0] + mean[drafted] if drafted else mean[0])
        limit = CLIP * math.sqrt(variance)
        mean += gain * (min(limit, max(-limit, error)) / variance)
        covariance -= gain[:, None] * (gain / variance)
        self.factors = self._factors()

    def _factors(self) -> list[float]:
        factors: list[float] = np.exp(self._mean - OPTIMISM * np.sqrt(self._covariance.diagonal())).tolist()
        factors[0] = 1.0
        return factors
