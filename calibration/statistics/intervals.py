"""Intervals of ratios, resampled by request, and quantiles.

Tokens and times of one request are correlated, so whole requests are resampled. The plain percentile bootstrap is too
narrow for few requests: it lacks the factor sqrt(n / (n - 1)) of the variance and the wider tails of Student's t. From
`FEW` requests on, its percentiles are moved outward by both (the expanded percentile interval: Hesterberg 2015, "What
Teachers Should Know About the Bootstrap", The American Statistician 69(4)). For fewer requests, where that could still
not reach beyond the requests that were seen, the interval is Student's t on the logarithm of the ratio, its variance by
linearization (Cochran, Sampling Techniques, chapter 6). Coverage of 1000 intervals over lognormal requests:
    requests      2     4     8    10    20   100
    ours       0.93  0.91  0.90  0.93  0.93  0.94
    percentile 0.47  0.77  0.84  0.88  0.91  0.93
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ...errors import ParameterError
from ...runtime.policy import routes
from .results import Interval, Quantiles

UNBOUNDED = routes.UNBOUNDED
FEW = 10
# Of `quantile_bound`.
BOUND_CONFIDENCE = 0.975
# Student's t at 97.5 %, for 1 to 8 degrees of freedom.
STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004)
NORMAL = NormalDist()
# Requests drawn at a time, which bounds the memory.
BLOCK = 1_000_000


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0, draws: int = 2000
) -> Interval:
    """sum(numerators) / sum(denominators) with its 95 % interval. Both have one entry per request, in the same order.

    With one request, or if all numerators are 0, low is 0 and high `UNBOUNDED`. The same input and seed give the same
    interval. Raises `ParameterError` for negative or non-finite numerators, and denominators not above 0.
    """
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not (np.isfinite(above).all() and np.isfinite(below).all() and (above >= 0).all() and (below > 0).all()):
        raise ParameterError(
            "a ratio's numerators must be 0 or more, its denominators above 0, and all finite; measure again"
        )
    value = float(above.sum() / below.sum())
    if len(above) == 1 or value == 0:
        return Interval(value, 0.0, UNBOUNDED)
    low, high = _student(above, below) if len(above) < FEW else _bootstrap(above, below, seed, draws)
    return Interval(value, min(low, value), min(max(high, value), UNBOUNDED))


def quantiles(values: Sequence[float]) -> Quantiles:
    """Quantiles by linear interpolation."""
    return Quantiles(*map(float, np.percentile(np.asarray(values, np.float64), [10, 50, 90, 99])))


def quantile_bound(values: Sequence[float], share: float) -> float:
    """Upper bound of the quantile `share`, for any distribution, at a confidence of 97.5 %; infinite if no value bounds
    it. 0 < share < 1.

    The number of values below the quantile is binomial.
    """
    count, below = len(values), 0.0  # below: P(no more than so many values lie below the quantile)
    for rank, value in enumerate(sorted(values)):
        ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(ways + rank * math.log(share) + (count - rank) * math.log1p(-share))
        if below >= BOUND_CONFIDENCE:
            return value
    return math.inf


def _student(above: NDArray[np.float64], below: NDArray[np.float64]) -> tuple[float, float]:
    count, ratio = len(above), above.sum() / below.sum()
    influence = above / above.sum() - below / below.sum()
    deviation = np.sqrt(count / (count - 1) * np.square(influence).sum())
    # So few requests may differ so much that the exponential overflows.
    reach = np.exp(min(_student_quantile(count - 1) * deviation, 700.0))
    return float(ratio / reach), float(ratio * reach)


def _bootstrap(above: NDArray[np.float64], below: NDArray[np.float64], seed: int, draws: int) -> tuple[float, float]:
    count, rng = len(above), np.random.default_rng(seed)
    size = max(1, BLOCK // count)
    ratios = []
    for start in range(0, draws, size):
        drawn = rng.integers(0, count, (min(size, draws - start), count))
        ratios.append(above[drawn].sum(axis=1) / below[drawn].sum(axis=1))
    tail = NORMAL.cdf(-np.sqrt(count / (count - 1)) * _student_quantile(count - 1))
    low, high = np.quantile(np.concatenate(ratios), [tail, 1 - tail])
    return float(low), float(high)


def _student_quantile(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table by expansion (Abramowitz and Stegun, 26.7.5), to 4 decimals."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL.inv_cdf(0.975)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def difference_interval(differences: Sequence[float], sizes: Sequence[float]) -> Interval:
    """sum(differences) / sum(sizes) with its 95 % interval: Student's t, by linearization. One entry per request.

    With one request the interval reaches from -`UNBOUNDED` to `UNBOUNDED`.
    """
    above, below = np.asarray(differences, np.float64), np.asarray(sizes, np.float64)
    count, value = len(above), float(above.sum() / below.sum())
    if count == 1:
        return Interval(value, -UNBOUNDED, UNBOUNDED)
    spread = np.sqrt(count / (count - 1) * np.square(above - value * below).sum()) / below.sum()
    reach = float(_student_quantile(count - 1) * spread)
    return Interval(value, value - reach, value + reach)
