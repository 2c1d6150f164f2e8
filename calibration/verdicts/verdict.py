"""Does it pay? Candidates replayed on the traces of a route, the best of them, and the verdict on it.

The verdict is on what will run: an adaptive session, replayed, or a fixed number of draft tokens. ON: the lower 95 %
bound of its speedup is above 1, and its p10 speedup reaches the floor. OFF: one of the two is refuted (the upper bound
of the speedup is below 1, or that of p10 is below the floor), or the best fixed number loses, and adapting is
undecided. UNDECIDED: neither (docs/when-it-pays.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...runtime.drafting.names import model_of
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routes import Evidence, Mode, RoutePolicy, Verdict
from ..measuring.confidence import Reading
from ..measuring.replay import plain_seconds, replay_fixed
from ..measuring.session_replay import Priced, adaptive_seconds, start_of
from ..measuring.traces import Trace, cached
from ..statistics.intervals import UNBOUNDED, quantile_bound, ratio_interval
from ..statistics.results import DraftCandidate, Interval

# Fewer requests give no verdict: their p10 would depend on one or two requests.
MIN_REQUESTS = 20
# In tokens. Shorter responses end after a round or two and do not count for the p10 speedup.
SHORTEST_RESPONSE = 8
# A drafter other than the preferred one must be faster by this factor to be chosen, and the interval be above 1.
BETTER_BY = 1.02


@dataclass(frozen=True)
class Criteria:
    """The criteria for a route's policy.

    drafters: to choose from, the preferred one first. floor: what the p10 speedup must reach. mode: of the policy.
    """

    drafters: tuple[str, ...]
    floor: float
    mode: Mode


@dataclass(frozen=True)
class Replayed:
    """A candidate, its speedups by request, and its seconds and those without drafts, in the order of the traces.

    The speedups of responses shorter than `SHORTEST_RESPONSE` are left out, unless all are.
    """

    candidate: DraftCandidate
    speedups: tuple[float, ...]
    seconds: tuple[float, ...]
    plain: tuple[float, ...]


def replay_candidates(traces: Sequence[Trace], costs: Costs, drafters: Sequence[str]) -> list[Replayed]:
    """Replay every drafter with every number of draft tokens from 1."""
    at, results = cached(costs), []
    plain = [plain_seconds(trace, at) for trace in traces]
    for drafter in drafters:
        for k in range(1, costs.max_draft_tokens + 1):
            rounds = [[one.seconds(at) for one in replay_fixed(trace, drafter, k)] for trace in traces]
            results.append(_replayed(traces, plain, list(map(sum, rounds)), sum(map(len, rounds)), drafter, k))
    return results


def replay_adaptive(
    traces: Sequence[Trace], costs: Costs, drafters: Sequence[str], reading: Reading | None
) -> list[Replayed]:
    """Replay an adaptive session with every drafter.

    Each half of the requests starts from the chances of the other half, so that none is judged by its own, unless there
    is only one request. reading: of the draft's confidence, None if it is not read.
    """
    at, results = cached(costs), []
    plain, sides = [plain_seconds(trace, at) for trace in traces], sides_of([trace.route for trace in traces])
    halves = [[trace for trace, side in zip(traces, sides, strict=True) if side == half] for half in (0, 1)]
    for drafter in drafters:
        starts = [start_of(halves[1 - half] or traces, drafter, costs) for half in (0, 1)]
        priced = Priced(costs, reading if model_of(drafter) else None)
        seconds, rounds = adaptive_seconds(traces, drafter, priced, [starts[side] for side in sides])
        results.append(_replayed(traces, plain, seconds, rounds, drafter, costs.max_draft_tokens, adapts=True))
    return results


def sides_of(routes: Sequence[str]) -> list[int]:
    """0 or 1 for each request, alternating within its route. (Routes alternate too, so halves by the request's number
    would be routes.)
    """
    seen, sides = Counter[str](), []
    for route in routes:
        sides.append(seen[route] % 2)
        seen[route] += 1
    return sides


def worth_reading(traces: Sequence[Trace], costs: Costs, reading: Reading, draft: str) -> bool:
    """Whether adapting to the confidence of `draft` is faster than adapting without it. Reading it takes microseconds,
    which are not counted.

    Replayed in one session with all requests, and in one session per route.
    """
    routes = sorted({trace.route for trace in traces})
    streams = [[n for n, trace in enumerate(traces) if trace.route == route] for route in routes]
    streams += [list(range(len(traces)))] if len(routes) > 1 else []
    at, saved = cached(costs), 0.0
    for stream in streams:
        requests = [traces[n] for n in stream]
        plain = sum(plain_seconds(trace, at) for trace in requests)
        read, blind = (
            plain / replay_adaptive(requests, costs, (draft,), way)[0].candidate.speedup.value
            for way in (reading.only(stream), None)
        )
        saved += blind - read
    return saved > 0


def _replayed(
    traces: Sequence[Trace],
    plain: Sequence[float],
    seconds: Sequence[float],
    rounds: int,
    drafter: str,
    k: int,
    adapts: bool = False,
) -> Replayed:
    """A candidate from its times. plain, seconds: of every trace, without and with drafts."""
    counted = [index for index, trace in enumerate(traces) if trace.output_tokens >= SHORTEST_RESPONSE]
    speedups = tuple(plain[index] / seconds[index] for index in counted or range(len(traces)))
    length, speedup = sum(trace.output_tokens for trace in traces) / rounds, ratio_interval(plain, seconds)
    candidate = DraftCandidate(
        drafter=drafter,
        num_draft_tokens=k,
        acceptance_length=length,
        break_even=length / speedup.value,
        speedup=speedup,
        p10=float(np.percentile(speedups, 10)),
        slower=sum(value < 1 for value in speedups) / len(speedups),
        adapts=adapts,
    )
    return Replayed(candidate, speedups, tuple(seconds), tuple(plain))


def best(replayed: Sequence[Replayed], drafters: Sequence[str]) -> Replayed:
    """The fastest candidate of the first of `drafters`, unless another drafter's is faster by `BETTER_BY`, and surely
    faster.
    """
    first, other, gain = _compared(replayed, drafters)
    return other if gain.value > BETTER_BY and gain.low > 1 else first


def doubted(replayed: Sequence[Replayed], drafters: Sequence[str]) -> str:
    """The sentence on a drafter that looks better and is not chosen, empty without one."""
    first, other, gain = _compared(replayed, drafters)
    if gain.value <= BETTER_BY or gain.low > 1:
        return ""
    kept, looks = first.candidate.drafter, other.candidate.drafter
    return f" {kept} stays the drafter: {looks} was {gain.value:.2f}x as fast, which these requests leave in doubt."


def _compared(replayed: Sequence[Replayed], drafters: Sequence[str]) -> tuple[Replayed, Replayed, Interval]:
    """The fastest candidate of the first of `drafters`, that of all, and how many times as fast this one is."""
    allowed = [one for one in replayed if one.candidate.drafter in drafters]

    def speedup(one: Replayed) -> float:
        return one.candidate.speedup.value

    first = max((one for one in allowed if one.candidate.drafter == drafters[0]), key=speedup)
    other = max(allowed, key=speedup)
    # Sampled answers of two drafts differ in length: as if the other's were as long.
    of_other = zip(other.seconds, first.plain, other.plain, strict=True)
    return first, other, ratio_interval(first.seconds, [time * ours / theirs for time, ours, theirs in of_other])


def judge(replayed: Replayed, floor: float) -> Verdict:
    """The verdict on the best candidate. floor: what its p10 speedup must reach."""
    return _judge(replayed, floor) if len(replayed.speedups) >= MIN_REQUESTS else "undecided"


def _judge(replayed: Replayed, floor: float) -> Verdict:
    candidate = replayed.candidate
    if candidate.speedup.high < 1 or quantile_bound(replayed.speedups, 0.1) < floor:
        return "off"
    return "on" if candidate.speedup.low > 1 and candidate.p10 >= floor else "undecided"


def missing(replayed: Replayed, floor: float) -> int:
    """About how many more requests a verdict needs: intervals shrink with the square root of their number."""
    requests, speedup = len(replayed.speedups), replayed.candidate.speedup
    least = max(0, MIN_REQUESTS - requests)
    if _judge(replayed, floor) != "undecided" or speedup.high >= UNBOUNDED:
        return least
    # p10 is near the floor, or the speedup is exactly 1: there is no formula, so ask for as many again
    if speedup.low > 1 or speedup.value == 1:
        return max(least, requests)
    reach = speedup.value - speedup.low if speedup.value > 1 else speedup.high - speedup.value
    needed = math.ceil(requests * (reach / abs(speedup.value - 1)) ** 2)
    return max(least, min(needed, 100_000) - requests, 1)


def decide(
    replayed: Sequence[Replayed],
    criteria: Criteria,
    start: Callable[[str], tuple[float, ...]],
    adaptive: Sequence[Replayed] = (),
) -> tuple[RoutePolicy, Replayed]:
    """(the route's entry of policy.json, the candidate it is based on).

    start: what sessions with a drafter start from. adaptive: from `replay_adaptive`; if there are any, the verdict is
    on these, since they are what will run.
    """
    chosen = best(adaptive or replayed, criteria.drafters)
    candidate = chosen.candidate
    alike = best(replayed, (candidate.drafter,))  # of the same drafter, with a fixed number
    fixed = alike.candidate
    verdict = judge(chosen, criteria.floor)
    lost = candidate.speedup.high < 1
    if verdict == "undecided" and fixed.speedup.high < 1:
        verdict, lost = judge(alike, criteria.floor), True  # drafts lose, adapting only comes back to plain decoding
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
    policy = RoutePolicy(
        verdict=verdict,
        drafter=candidate.drafter,
        num_draft_tokens=fixed.num_draft_tokens if pays else 0,
        # OFF because of p10 alone: an adaptive schedule follows the mean and would speculate again.
        mode="fixed" if verdict == "off" and not lost else criteria.mode,
        chances=start(candidate.drafter),
        evidence=evidence,
    )
    return policy, chosen


def on_these(policy: RoutePolicy, judged: DraftCandidate, floor: float) -> str:
    """`Faster` or `Slower` where too few requests for a verdict leave no doubt about themselves, else empty."""
    if policy.verdict != "undecided" or policy.evidence is None or policy.evidence.requests >= MIN_REQUESTS:
        return ""
    if judged.speedup.low > 1 and judged.p10 >= floor:
        return "Faster"
    return "Slower" if judged.speedup.high < 1 else ""


def in_words(policy: RoutePolicy, chosen: DraftCandidate, lacking: int, floor: float) -> str:
    """The verdict in a sentence. lacking: from `missing`."""
    speedup = chosen.speedup
    between = (
        f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup.high < UNBOUNDED else "one request gives no interval"
    )
    expected = f"{speedup.value:.2f}x expected ({between}), p10 {chosen.p10:.2f}x"
    number = f"{chosen.num_draft_tokens} draft token{'s' * (chosen.num_draft_tokens > 1)}"
    setting = f"{'as many draft tokens as pay' if chosen.adapts else number} by {chosen.drafter}"
    if policy.verdict == "on":
        return f"Speculate with {setting}: {expected}."
    if policy.verdict == "off":
        why = "" if speedup.high < 1 else f", below the floor of {floor:g}"
        if why and policy.mode == "adaptive":
            why = "; every fixed number of draft tokens loses, and adapting has no significant gain"
        return f"Do not speculate: the best setting is {setting}, {expected}{why}."
    long = f"of {SHORTEST_RESPONSE} tokens or more"
    answers = f"with {'answers' if lacking != 1 else 'an answer'} {long}"
    more = f"{lacking} more request{'s' * (lacking != 1)}"
    speculates = policy.mode == "adaptive" or policy.num_draft_tokens
    meanwhile = f"meanwhile {setting}" if speculates else f"meanwhile plain decoding; the best setting is {setting}"
    if policy.evidence is not None and policy.evidence.requests < MIN_REQUESTS:
        if clear := on_these(policy, chosen, floor):
            return f"{clear} on these requests: {expected}. {more} {answers} would settle it; {meanwhile}."
        return (
            f"A verdict needs {MIN_REQUESTS} or more requests with answers {long} and has {policy.evidence.requests}; "
            f"{meanwhile}, {expected}. About {more} would decide."
        )
    why = "P10 is near the floor" if speedup.low > 1 else "The interval includes 1"
    return f"{why}; {meanwhile}, {expected}. About {more} {answers} would decide."
