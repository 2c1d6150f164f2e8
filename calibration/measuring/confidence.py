"""The draft's confidence on recorded requests, and the host time that reading it takes.

It is known at tokens that were judged. At other tokens, that of another token of the request with the same outcome is
used, and after a round's first miss, that of the miss. The time is measured in the loop, where the CPU's caches are
cold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from ...engines.base import Logits
from ...runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ...runtime.policy.confidence import AcceptancePredictor, ConfidentSchedule
from ...runtime.policy.controller import RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.decisions import acceptance_predictor
from ...runtime.policy.routes import RoutePolicy
from ...runtime.policy.survival import Survival
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from .prompts import Request
from .record import Record
from .traces import known

# Requests that are run to measure it.
REQUESTS = 3
# A chance of acceptance that is high enough for drafts in every round.
TRUST = 0.95


@dataclass(frozen=True)
class Reading:
    """The draft's confidence on recorded requests, and what reading it costs.

    survival: turns a signal's logit into a probability of acceptance. seconds: additional host time per draft pass.
    logits: for each request, in the order of the traces, the signal's logit at every output token.
    """

    survival: Survival
    seconds: float
    logits: tuple[tuple[float, ...], ...]

    def only(self, numbers: Sequence[int]) -> Reading:
        """For the requests with these numbers only."""
        return replace(self, logits=tuple(self.logits[number] for number in numbers))


def read_confidence(
    session: Session,
    requests: Sequence[Request],
    records: Sequence[Record],
    costs: Costs,
    survival: Survival | None,
    sampling: SamplingParameters,
) -> Reading | None:
    """The draft's confidence on all records; None if it cannot be read. sampling: as in `record`."""
    if survival is None or session.engine.rounds is not None:
        return None
    predictor = acceptance_predictor(survival, session.drafts.confidence(sampling.drafter))
    if predictor is None:
        return None
    seconds = reading_seconds(session, requests, sampling, costs, predictor)
    logits = tuple(signal_logits(one, survival) for one in records)
    return Reading(survival, seconds, logits)


def signal_logits(record: Record, survival: Survival) -> tuple[float, ...]:
    """The logit of the signal of `survival` at every output token."""
    logits: list[float | None] = [None] * record.trace.output_tokens
    starts, place = [], 0
    for _, accepted in record.rounds:
        starts.append(place)
        place += accepted + 1
    for one in record.judged:
        logit = one.probability if survival.signal == "probability" else one.confidence
        if starts[one.round] + one.index < len(logits):
            logits[starts[one.round] + one.index] = logit
    return _filled(logits, known(record.trace), record.line)


def _filled(logits: Sequence[float | None], agrees: Sequence[bool], line: int) -> tuple[float, ...]:
    pools: dict[bool, list[float]] = {True: [], False: []}
    for logit, right in zip(logits, agrees, strict=True):
        if logit is not None:
            pools[right].append(logit)
    draw, every = random.Random(line), pools[True] + pools[False] or [0.0]
    return tuple(
        draw.choice(pools[right] or every) if logit is None else logit
        for logit, right in zip(logits, agrees, strict=True)
    )


class TimedSchedule:
    """Wraps an adaptive schedule and times its decisions between draft passes."""

    needs_host = True

    def __init__(self, schedule: ConfidentSchedule) -> None:
        self._schedule = schedule
        self.seconds: list[float] = []  # of each pass

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return replace(self._schedule.plan(sequence), draft_stop=self)

    def observe(self, outcome: RoundOutcome) -> None:
        self._schedule.observe(outcome)

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        return self._schedule.looked_up(count, length, drafted)

    def include(self, index: int, logits: Logits) -> bool:
        start = perf_counter()
        included = self._schedule.include(index, logits)
        self.seconds.append(perf_counter() - start)
        return included

    def go_on(self, num_drafted: int) -> bool:
        start = perf_counter()
        onward = self._schedule.go_on(num_drafted)
        if num_drafted:
            self.seconds[-1] += perf_counter() - start
        return onward


def reading_seconds(
    session: Session,
    requests: Sequence[Request],
    sampling: SamplingParameters,
    costs: Costs,
    predictor: AcceptancePredictor,
) -> float:
    """Median seconds per draft pass for reading the confidence and deciding; 0 if nothing was drafted."""
    drafter = sampling.drafter or session.drafts.first
    entry = RoutePolicy("undecided", drafter, 0, "adaptive", (TRUST,), None)
    seconds: list[float] = []
    for request in requests[:REQUESTS]:
        schedule = TimedSchedule(ConfidentSchedule(entry, costs, RouteState(), session.max_draft_tokens, predictor))
        session.reset()
        session.generate(request.tokens, sampling, max_new_tokens=request.max_new_tokens, schedule=schedule)
        seconds += schedule.seconds
    return median(seconds) if seconds else 0.0
