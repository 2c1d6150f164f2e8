"""Everything that calibration reports about a route, from its recorded requests and the costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...runtime.policy.cost_model import Costs
from ..drafted import Drafted, of_drafter
from ..measuring.record import Record
from ..measuring.replay import ReplayedRound, plain_seconds
from ..measuring.session_replay import start_of
from ..measuring.traces import cached
from ..statistics.intervals import quantiles, ratio_interval
from ..statistics.results import MeasuredRuns, RouteAnalysis
from .verdict import Criteria, Replayed, best, decide, doubted, in_words, missing, replay_adaptive, replay_candidates


def analyze_route(route: str, drafted: Sequence[Drafted], criteria: Criteria) -> RouteAnalysis:
    """Replay, decide and summarize.

    drafted: the route's requests, at least one, as recorded with each draft; statistics of rounds are those of the
    first.
    """
    records, costs = drafted[0].records, drafted[0].costs
    replayed: list[Replayed] = []
    adaptive: list[Replayed] = []
    for draft in drafted:
        traces, drafters = draft.traces, [name for name in criteria.drafters if of_drafter(drafted, name) is draft]
        replayed += replay_candidates(traces, draft.costs, drafters)
        if criteria.mode == "adaptive":
            adaptive += replay_adaptive(traces, draft.costs, drafters, draft.reading)

    def start(drafter: str) -> tuple[float, ...]:
        draft = of_drafter(drafted, drafter)
        return start_of(draft.traces, drafter, draft.costs)

    policy, chosen = decide(replayed, criteria, start, adaptive)
    candidate, lacking = chosen.candidate, missing(chosen, criteria.floor)
    rounds = [one for record in records for one in record.rounds]
    return RouteAnalysis(
        route=route,
        requests=len(records),
        tokens=sum(one.trace.output_tokens for one in records),
        rounds=len(rounds),
        policy=policy,
        words=in_words(policy, candidate, lacking, criteria.floor) + doubted(adaptive or replayed, criteria.drafters),
        missing=lacking,
        recorded_drafter=drafted[0].drafter,
        candidates=tuple(one.candidate for one in replayed),
        chosen=best(replayed, (candidate.drafter,)).candidate,
        acceptance=_acceptance(rounds, costs.max_draft_tokens),
        speedups=chosen.speedups,
        measured=_measured(records, costs),
        adaptive=candidate if candidate.adapts else None,
        adapting=tuple(one.candidate for one in adaptive),
    )


def _acceptance(rounds: Sequence[tuple[int, ...]], most: int) -> tuple[float, ...]:
    """By position: of the rounds that reached a draft token, the share that accepted it."""
    shares = []
    for index in range(most):
        reached = [accepted > index for drafted, accepted in rounds if drafted > index and accepted >= index]
        shares.append(sum(reached) / len(reached) if reached else 0.0)
    return tuple(shares)


def _measured(records: Sequence[Record], costs: Costs) -> MeasuredRuns:
    at = cached(costs)
    plain = sum(plain_seconds(one.trace, at) for one in records)
    speculative = sum(round.seconds(at) for one in records for round in recorded_rounds(one))
    return MeasuredRuns(
        num_draft_tokens=costs.max_draft_tokens,
        # Plain time is scaled to the speculative run's tokens: sampled runs may differ in length.
        speedup=ratio_interval(
            [one.plain.latency * one.speculative.emitted for one in records],
            [one.speculative.decode for one in records],
        ),
        predicted=plain / speculative,
        first_token_plain=median(one.plain.first_token for one in records),
        first_token_speculative=median(one.speculative.first_token for one in records),
        latency_plain=quantiles([one.plain.latency for one in records]),
        latency_speculative=quantiles([one.speculative.latency for one in records]),
    )


def recorded_rounds(record: Record) -> Sequence[ReplayedRound]:
    """The rounds that ran, in the form of replayed rounds."""
    rounds, place = [], record.prompt_tokens
    looked_up = all(agrees is None for agrees in record.agrees)
    for drafted, accepted in record.rounds:
        rounds.append(ReplayedRound(place - 1, drafted, accepted, 0 if looked_up else drafted))
        place += accepted + 1
    return rounds
