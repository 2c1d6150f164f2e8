"""The host time that reading the draft's confidence takes, measured in the loop, where the CPU's caches are cold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ...engines.base import Logits
from ...runtime.drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ...runtime.policy.confidence import AcceptancePredictor, ConfidentSchedule
from ...runtime.policy.controller import RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.decisions import chance_of
from ...runtime.policy.routes import RoutePolicy
from ...runtime.policy.survival import Survival
from ...runtime.sampling.parameters import SamplingParameters
from ...runtime.session import Session
from .adaptive_replay import Reading, signal_logits
from .prompts import Request
from .record import Record

# Requests that are run to measure it.
REQUESTS = 3
# A chance of acceptance that is high enough for drafts in every round.
TRUST = 0.95


class Listener:
    """Wraps an adaptive schedule and times its decisions between draft passes."""

    needs_host = True

    def __init__(self, schedule: ConfidentSchedule) -> None:
        self._schedule = schedule
        self.seconds: list[float] = []  # of each pass

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return replace(self._schedule.plan(sequence), guide=self)

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


def listening_seconds(
    session: Session,
    requests: Sequence[Request],
    sampling: SamplingParameters,
    costs: Costs,
    chance: AcceptancePredictor,
) -> float:
    """Median seconds per draft pass for reading `chance` and deciding; 0 if nothing was drafted."""
    most = session.max_draft_tokens
    entry = RoutePolicy("undecided", sampling.drafter or session.drafts.first, 0, "adaptive", (TRUST,), None)
    seconds: list[float] = []
    for request in requests[:REQUESTS]:
        listener = Listener(ConfidentSchedule(entry, costs, RouteState(), most, chance))
        session.reset()
        session.generate(request.tokens, sampling, max_new_tokens=request.max_new_tokens, schedule=listener)
        seconds += listener.seconds
    return median(seconds) if seconds else 0.0


def listen(
    session: Session,
    requests: Sequence[Request],
    recorded: tuple[Sequence[Record], Sequence[NDArray[np.float16]]],
    costs: Costs,
    survival: Survival | None,
    sampling: SamplingParameters,
) -> Reading | None:
    """The draft's confidence on all records, and what reading it costs; None if it cannot be read.

    recorded: records, and for each of them the features of its judged tokens. sampling: as in `record`.
    """
    if survival is None or session.engine.rounds is not None:
        return None
    chance = chance_of(survival, session.drafts.head(sampling.drafter))
    if chance is None:
        return None
    seconds = listening_seconds(session, requests, sampling, costs, chance)
    logits = tuple(signal_logits(one, rows, survival) for one, rows in zip(*recorded, strict=True))
    return Reading(survival, seconds, logits)
