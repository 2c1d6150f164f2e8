"""Everything that calibration reports about a route, from its recorded requests and the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routes import RoutePolicy
from ..drafted import Drafted, of_drafter
from ..measuring.record import Record
from ..measuring.trace_replay import ReplayedRound, plain_seconds, round_seconds
from ..measuring.traces import cached
from ..statistics.intervals import quantiles, ratio_interval
from ..statistics.results import Bucket, MeasuredRuns, RouteAnalysis
from .chains import unit_of
from .verdict import (
    SHORTEST_RESPONSE,
    Criteria,
    Replayed,
    best,
    conditional_chances,
    decide,
    in_words,
    missing,
    replay_adaptive,
    replay_candidates,
)

# Bounds of the buckets of requests by length, in tokens.
EDGES = {"prompt": (0, 64, 256, 1024, 4096), "response": (0, 32, 128, 512, 2048)}


def analyze_route(route: str, drafted: Sequence[Drafted], possible: Sequence[str], criteria: Criteria) -> RouteAnalysis:
    """Replay, decide and summarize.

    drafted: the route's requests, at least one, as recorded with each draft; statistics of rounds are those of the
    first. possible: all drafters to replay.
    """
    records, costs = drafted[0].records, drafted[0].costs
    traces = [one.trace for one in records]
    most = costs.max_draft_tokens
    replayed: list[Replayed] = []
    adaptive: list[Replayed] = []
    for draft in drafted:
        own, drafters = draft.traces, [name for name in possible if of_drafter(drafted, name) is draft]
        replayed += replay_candidates(own, draft.costs, drafters)
        if criteria.mode == "adaptive":
            adaptive += replay_adaptive(own, draft.costs, drafters, draft.reading)
    policy, chosen = decide(traces, replayed, criteria, most, adaptive)
    policy = _started(policy, drafted, most)
    better = best(adaptive or replayed, (chosen.candidate.drafter, *possible))
    candidate = chosen.candidate
    lacking = missing(chosen, criteria.floor)
    rounds = [(drafted, accepted) for one in records for drafted, accepted in one.rounds]
    judged = sum(min(accepted + 1, drafted) for drafted, accepted in rounds)
    alpha = sum(accepted for _, accepted in rounds) / judged if judged else 0.0
    return RouteAnalysis(
        route=route,
        requests=len(records),
        tokens=sum(trace.output_tokens for trace in traces),
        rounds=len(rounds),
        policy=policy,
        words=in_words(policy, candidate, better.candidate if better is not chosen else None, lacking, criteria.floor),
        missing=lacking,
        candidates=tuple(one.candidate for one in replayed),
        chosen=best(replayed, (candidate.drafter,)).candidate,
        acceptance=_acceptance(rounds, most),
        per_round=tuple(sum(accepted == n for _, accepted in rounds) / len(rounds) for n in range(most + 1)),
        per_request=quantiles([_acceptance_length(one) for one in records]),
        alpha=alpha,
        textbook=tuple(sum(alpha**i for i in range(k + 1)) for k in range(most + 1)),
        buckets=_buckets(records),
        speedups=chosen.speedups,
        measured=_measured(records, costs),
        adaptive=candidate if candidate.adapts else None,
        adapting=tuple(one.candidate for one in adaptive),
    )


def _started(policy: RoutePolicy, drafted: Sequence[Drafted], most: int) -> RoutePolicy:
    """The policy with what sessions start from, computed from what was recorded with the drafter's own draft."""
    own, drafter = of_drafter(drafted, policy.drafter), policy.drafter
    unit = unit_of(own.traces, drafter, own.costs)
    return replace(policy, chances=conditional_chances(own.traces, drafter, most), unit=unit)


def _acceptance_length(record: Record) -> float:
    return (sum(accepted for _, accepted in record.rounds) + len(record.rounds)) / len(record.rounds)


def _acceptance(rounds: Sequence[tuple[int, int]], most: int) -> tuple[float, ...]:
    """By position: of the rounds that reached a draft token, the share that accepted it."""
    found = []
    for index in range(most):
        reached = [accepted > index for drafted, accepted in rounds if drafted > index and accepted >= index]
        found.append(sum(reached) / len(reached) if reached else 0.0)
    return tuple(found)


def _buckets(records: Sequence[Record]) -> tuple[Bucket, ...]:
    """The buckets that hold a request."""
    found = []
    for kind, edges in EDGES.items():
        for low, high in zip(edges, (*edges[1:], None), strict=True):
            inside = [one for one in records if low <= _size(one, kind) and (high is None or _size(one, kind) < high)]
            if inside:
                tokens = [sum(n for _, n in one.rounds) + len(one.rounds) for one in inside]
                interval = ratio_interval(tokens, [len(one.rounds) for one in inside])
                found.append(Bucket(kind, low, high, len(inside), interval))
    return tuple(found)


def _size(record: Record, kind: str) -> int:
    return record.prompt_tokens if kind == "prompt" else record.trace.output_tokens


def _measured(records: Sequence[Record], costs: Costs) -> MeasuredRuns:
    at = cached(costs)
    plain = sum(plain_seconds(one.trace, at) for one in records)
    speculative = sum(round_seconds(round, at) for one in records for round in recorded_rounds(one))
    return MeasuredRuns(
        num_draft_tokens=costs.max_draft_tokens,
        # Plain time is scaled to the speculative run's tokens: sampled runs may differ in length.
        speedup=ratio_interval(
            [one.plain.latency * one.speculative.emitted for one in records],
            [one.speculative.decode for one in records],
        ),
        predicted=plain / speculative,
        speedups=tuple(one.speedup for one in records if one.trace.output_tokens >= SHORTEST_RESPONSE)
        or tuple(one.speedup for one in records),
        first_token_plain=median(one.plain.first_token for one in records),
        first_token_speculative=median(one.speculative.first_token for one in records),
        latency_plain=quantiles([one.plain.latency for one in records]),
        latency_speculative=quantiles([one.speculative.latency for one in records]),
    )


def recorded_rounds(record: Record) -> Sequence[ReplayedRound]:
    """The rounds that ran, in the form of replayed rounds."""
    found, place = [], record.prompt_tokens
    looked_up = all(agrees is None for agrees in record.agrees)
    for drafted, accepted in record.rounds:
        found.append(ReplayedRound(place - 1, drafted, accepted, 0 if looked_up else drafted))
        place += accepted + 1
    return found
