"""Does it pay? Candidates replayed on the traces of a route, the best of them, and the verdict on it.

ON where the lower 95 % bound of the best candidate's speedup is above 1 and the slowest tenth of the requests reaches
the floor;
OFF where one of the two is refuted: the upper bound is below 1, or the slowest tenth's is below the floor; UNDECIDED
else (docs/when-it-pays.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routes import Evidence, Mode, RoutePolicy, Verdict
from ..measuring.trace_replay import Trace, cached, plain_seconds, replay, round_seconds
from ..statistics.intervals import UNBOUNDED, ratio_interval
from ..statistics.results import DraftCandidate
from ..statistics.sample_size import quantile_ranks

# Fewer requests give no verdict: their slowest tenth is a request or two.
LEAST_REQUESTS = 20
# Shorter responses are over in a round or two, and are not among the requests whose slowest tenth counts.
SHORTEST_RESPONSE = 8
# Another drafter than the first must be better by so much to be worth the change.
BETTER_BY = 1.02


@dataclass(frozen=True)
class Replayed:
    """A candidate with its speedup of every request whose response is not too short (of all, where all are), in the traces' order."""

    candidate: DraftCandidate
    speedups: tuple[float, ...]


def replay_candidates(traces: Sequence[Trace], costs: Costs, drafters: Sequence[str]) -> list[Replayed]:
    """Every drafter with every number of draft tokens from 1."""
    at = cached(costs)
    plain = [plain_seconds(trace, at) for trace in traces]
    tokens = sum(trace.output_tokens for trace in traces)
    counted = [index for index, trace in enumerate(traces) if trace.output_tokens >= SHORTEST_RESPONSE] or list(
        range(len(traces))
    )
    found = []
    for drafter in drafters:
        for k in range(1, costs.max_draft_tokens + 1):
            seconds, rounds = [], 0
            for trace in traces:
                times = [round_seconds(round, at) for round in replay(trace, drafter, k)]
                rounds += len(times)
                seconds.append(sum(times))
            speedup = ratio_interval(plain, seconds)
            speedups = tuple(plain[index] / seconds[index] for index in counted)
            length = tokens / rounds
            slower = sum(value < 1 for value in speedups) / len(speedups)
            p10 = float(np.percentile(speedups, 10))
            found.append(
                Replayed(DraftCandidate(drafter, k, length, length / speedup.value, speedup, p10, slower), speedups)
            )
    return found


def best(replayed: Sequence[Replayed], drafters: Sequence[str]) -> Replayed:
    """The largest speedup among `drafters`: of the first one's, unless another's is larger by `BETTER_BY`."""
    allowed = [one for one in replayed if one.candidate.drafter in drafters]

    def speedup(one: Replayed) -> float:
        return one.candidate.speedup.value

    first = max((one for one in allowed if one.candidate.drafter == drafters[0]), key=speedup)
    other = max(allowed, key=speedup)
    return other if speedup(other) > BETTER_BY * speedup(first) else first


def judge(replayed: Replayed, floor: float) -> Verdict:
    """The verdict on the best candidate. floor: of the slowest tenth's speedup."""
    return _judge(replayed, floor) if len(replayed.speedups) >= LEAST_REQUESTS else "undecided"


def _judge(replayed: Replayed, floor: float) -> Verdict:
    candidate = replayed.candidate
    if candidate.speedup.high < 1 or _p10_bound(replayed.speedups) < floor:
        return "off"
    return "on" if candidate.speedup.low > 1 and candidate.p10 >= floor else "undecided"


def _p10_bound(speedups: Sequence[float]) -> float:
    """What the tenth percentile does not exceed with 97.5 %, whatever the distribution; infinite where nothing bounds it."""
    _, rank = quantile_ranks(len(speedups), 0.1)
    return math.inf if rank is None else sorted(speedups)[rank - 1]


def missing(replayed: Replayed, floor: float) -> int:
    """Requests still needed for a verdict, about: intervals narrow with their square root."""
    requests, speedup = len(replayed.speedups), replayed.candidate.speedup
    least = max(0, LEAST_REQUESTS - requests)
    if _judge(replayed, floor) != "undecided":
        return least
    if speedup.high >= UNBOUNDED:
        return least
    # the slowest tenth is near the floor, or the speedup is just 1: as many again
    if speedup.low > 1 or speedup.value == 1:
        return max(least, requests)
    reach = speedup.value - speedup.low if speedup.value > 1 else speedup.high - speedup.value
    needed = math.ceil(requests * (reach / abs(speedup.value - 1)) ** 2)
    return max(least, min(needed, 100_000) - requests, 1)


def conditional_chances(traces: Sequence[Trace], drafter: str, most: int) -> tuple[float, ...]:
    """Of draft token i, from the first, to be accepted when all before it are: the rounds' share, one success and one failure added."""
    reached, accepted = [0] * most, [0] * most
    for trace in traces:
        for one in replay(trace, drafter, most):
            for index in range(min(one.num_accepted + 1, one.num_drafted)):
                reached[index] += 1
                accepted[index] += index < one.num_accepted
    return tuple(round((a + 1) / (r + 2), 4) for a, r in zip(accepted, reached, strict=True))


def decide(
    traces: Sequence[Trace], replayed: Sequence[Replayed], drafters: Sequence[str], most: int, floor: float, mode: Mode
) -> tuple[RoutePolicy, Replayed]:
    """The entry of policy.json, and the candidate that it rests on, one of `drafters`."""
    chosen = best(replayed, drafters)
    candidate = chosen.candidate
    verdict = judge(chosen, floor)
    evidence = Evidence(
        requests=len(chosen.speedups),
        acceptance_length=round(candidate.acceptance_length, 4),
        break_even=round(candidate.break_even, 4),
        speedup=round(candidate.speedup.value, 4),
        low=round(candidate.speedup.low, 4),
        high=round(candidate.speedup.high, 4),
        p10=round(candidate.p10, 4),
    )
    pays = verdict == "on" or (verdict == "undecided" and candidate.speedup.value > 1)
    k = candidate.num_draft_tokens if pays else 0
    if verdict == "off" and candidate.speedup.high >= 1:
        mode = "fixed"  # it is the slowest tenth that speaks against it, which an adaptive schedule does not see
    return RoutePolicy(
        verdict, candidate.drafter, k, mode, conditional_chances(traces, candidate.drafter, most), evidence
    ), chosen


def in_words(
    policy: RoutePolicy, chosen: DraftCandidate, better: DraftCandidate | None, lacking: int, floor: float
) -> str:
    """The verdict in a sentence, and in another one what a drafter that was not to be chosen would have given."""
    words = _in_words(policy, chosen, lacking, floor)
    if better is None:
        return words
    speedup = better.speedup
    return f"{words} {better.drafter} would give {speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}): --drafter all."


def _in_words(policy: RoutePolicy, chosen: DraftCandidate, lacking: int, floor: float) -> str:
    speedup = chosen.speedup
    between = (
        f"{speedup.low:.2f} to {speedup.high:.2f}"
        if speedup.high < UNBOUNDED
        else "one request says nothing of the next"
    )
    found = f"{speedup.value:.2f}x expected ({between}), slowest tenth {chosen.p10:.2f}x"
    how = f"with {chosen.num_draft_tokens} draft token{'s' * (chosen.num_draft_tokens > 1)} by {chosen.drafter}"
    if policy.verdict == "on":
        return f"Speculate, {how}: {found}."
    if policy.verdict == "off":
        why = "" if speedup.high < 1 else f", below the floor of {floor:g}"
        return f"Do not speculate: even {how}, the best there is, {found}{why}."
    if policy.evidence is not None and policy.evidence.requests < LEAST_REQUESTS:
        why = f"fewer than {LEAST_REQUESTS} requests"
    else:
        why = "the slowest tenth is near the floor" if speedup.low > 1 else "the interval holds 1"
    return f"Not known, {why}: {how}, {found}; about {lacking} more requests of {SHORTEST_RESPONSE} tokens or more would decide."
