"""Replays a recorded request as an adaptive session would run it: every round drafts as many tokens as pay.

Which tokens the draft gets right is known at every position, as for a fixed number (`trace_replay.py`). The draft's
confidence is known at tokens that were judged. At other tokens, that of another token of the request with the same
outcome is used, and after a round's first miss, that of the miss.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runtime.drafting.rounds import SequenceState
from ...runtime.policy.confidence import adaptive_schedule
from ...runtime.policy.controller import AdaptiveSchedule, RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routes import RoutePolicy
from ...runtime.policy.survival import Survival
from .record import Record
from .trace_replay import ReplayedRound, Replayer, round_seconds
from .traces import CostsAt, Trace, known


@dataclass(frozen=True)
class Reading:
    """The draft's confidence on recorded requests, and what reading it costs.

    survival: turns a signal's logit into a probability of acceptance. seconds: additional host time per draft pass.
    logits: for each request, in the order of the traces, the signal's logit at every output token.
    """

    survival: Survival
    seconds: float
    logits: tuple[tuple[float, ...], ...]


def signal_logits(record: Record, features: NDArray[np.float16], survival: Survival) -> tuple[float, ...]:
    """The logit of the signal of `survival` at every output token. features: of the judged tokens, `[n, F]`."""
    found: list[float | None] = [None] * record.trace.output_tokens
    starts, place = [], 0
    for _, accepted in record.rounds:
        starts.append(place)
        place += accepted + 1
    weights = np.array(survival.head[:-1], np.float64)
    for row, one in enumerate(record.judged):
        logit = one.probability
        if survival.signal != "probability":
            seen = features[row].astype(np.float64)
            seen = np.append(seen, one.probability) if survival.signal == "both" else seen
            logit = float(seen @ weights) + survival.head[-1]
        if starts[one.round] + one.index < len(found):
            found[starts[one.round] + one.index] = logit
    return _filled(found, known(record.trace), record.line)


def _filled(found: Sequence[float | None], agrees: Sequence[bool], line: int) -> tuple[float, ...]:
    pools: dict[bool, list[float]] = {True: [], False: []}
    for logit, right in zip(found, agrees, strict=True):
        if logit is not None:
            pools[right].append(logit)
    draw, every = random.Random(line), pools[True] + pools[False] or [0.0]
    return tuple(
        draw.choice(pools[right] or every) if logit is None else logit
        for logit, right in zip(found, agrees, strict=True)
    )


def adapt(
    trace: Trace, drafter: str, schedule: AdaptiveSchedule, logits: Sequence[float] = ()
) -> Iterator[ReplayedRound]:
    """The rounds of `trace` with `drafter` under `schedule`. logits: of `Reading`; unused if the schedule does not read
    the confidence.
    """
    replayer, place = Replayer(trace, drafter, logits), trace.prompt_tokens
    while place < len(trace.tokens):
        plan = schedule.plan(SequenceState(place, lambda _: replayer.behind + 1))
        one = replayer.round(place, plan.num_draft_tokens, plan.guide)
        yield one
        schedule.observe(one.outcome)
        place += one.num_accepted + 1


def adaptive_seconds(
    traces: Sequence[Trace],
    costs: Costs,
    drafter: str,
    at: CostsAt,
    chances: Sequence[tuple[float, ...]],
    reading: Reading | None,
    units: Sequence[float] = (),
) -> tuple[list[float], int]:
    """(seconds of every trace, number of rounds) of adaptive sessions.

    chances, units: for each trace, what its session starts from, see `RoutePolicy`; without units nothing guesses for
    the draft. Traces with equal chances belong to one session, which learns from one to the next.
    """
    states: dict[tuple[float, ...], RouteState] = {}
    believed = {unit: costs.chained(unit) for unit in units}
    seconds, rounds, most = [], 0, costs.max_draft_tokens
    chance = (lambda index, row: reading.survival.chance(index, float(row[0, 0]))) if reading is not None else None
    for number, (trace, start) in enumerate(zip(traces, chances, strict=True)):
        entry = RoutePolicy("undecided", drafter, 0, "adaptive", start, None)
        own = believed[units[number]] if units else costs
        schedule = adaptive_schedule(entry, own, chance, states.setdefault(start, RouteState()), most)
        spent = 0.0
        for one in adapt(trace, drafter, schedule, reading.logits[number] if reading is not None else ()):
            spent += round_seconds(one, at)
            if reading is not None:
                spent += one.passes * reading.seconds
            rounds += 1
        seconds.append(spent)
    return seconds, rounds
