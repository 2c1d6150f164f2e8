"""What n requests can tell about quantiles, and what they cannot."""

from __future__ import annotations

import math

# Requests per bucket: the usual advice, and the fewest that say anything.
USUAL = 500
FEW = 20


def quantile_ranks(requests: int, share: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Ranks of the requests between which the quantile `share` lies with at least `confidence`.

    Ranks count from 1, in rising order. Holds for any distribution, since the number of requests below the quantile is
    binomial. None for an end that no request bounds: even the smallest (largest) is too seldom below (above) the
    quantile. Needs 0 < share < 1.
    """
    tail = (1 - confidence) / 2
    lower: int | None = None
    below = 0.0  # P(fewer than `rank` requests lie below the quantile)
    for rank in range(1, requests + 1):
        below += _binomial(requests, rank - 1, share)
        if below <= tail:
            lower = rank
        if below >= 1 - tail:
            return lower, rank
    return lower, None


def what_samples_tell(requests: int) -> str:
    """A sentence on how much this number of requests says about the p10 speedup and the p99 latency."""
    number = "1 request" if requests == 1 else f"{requests} requests"
    if requests < FEW:
        return f"{number}: too few to bound the p10 speedup or the p99 latency"
    slow, _ = quantile_ranks(requests, 0.1)
    _, largest = quantile_ranks(requests, 0.99)
    p10 = "p10 speedup without a lower end" if slow is None else f"p10 speedup at least the {_nth(slow)}smallest"
    p99 = (
        "p99 latency without an upper end"
        if largest is None
        else f"p99 latency at most the {_nth(requests - largest + 1)}largest"
    )
    return f"{number}: {p10}, {p99} (95 %)"


def _nth(rank: int) -> str:
    if rank == 1:
        return ""
    ending = "th" if rank // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending} "


def _binomial(trials: int, successes: int, chance: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return math.exp(ways + successes * math.log(chance) + (trials - successes) * math.log1p(-chance))
