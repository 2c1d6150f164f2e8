"""Replays recorded requests as a session runs them one after another: with one drafter that adapts, or choosing the
drafter round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...runtime.drafting.names import model_of
from ...runtime.drafting.ngram_cache import NgramCache
from ...runtime.policy.confidence import AcceptancePredictor, adaptive_schedule
from ...runtime.policy.controller import RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routed_schedule import Candidate, RoutedSchedule
from ...runtime.policy.routes import RoutePolicy
from ...runtime.policy.routing import Routing
from .confidence import Reading
from .replay import Runs, replay, replay_fixed
from .traces import Trace, cached


@dataclass(frozen=True)
class Priced:
    """Costs of a drafter. reading: its draft's confidence for every request of the stream, None if it is not read."""

    costs: Costs
    reading: Reading | None = None

    @property
    def predictor(self) -> AcceptancePredictor | None:
        reading = self.reading
        return (lambda index, row: reading.survival.chance(index, float(row[0, 0]))) if reading is not None else None

    def logits(self, request: int) -> tuple[float, ...]:
        return self.reading.logits[request] if self.reading is not None else ()


def adaptive_seconds(
    traces: Sequence[Trace], drafter: str, priced: Priced, starts: Sequence[tuple[float, ...]]
) -> tuple[list[float], int]:
    """(seconds of every trace, number of rounds) of adaptive sessions with one drafter.

    starts: the chances that the session of every trace starts from. Traces with equal ones belong to one session, which
    learns from one to the next.
    """
    at, most = cached(priced.costs), priced.costs.max_draft_tokens
    sessions = {start: (RouteState(), NgramCache()) for start in starts}
    seconds, rounds = [], 0
    for number, (trace, start) in enumerate(zip(traces, starts, strict=True)):
        entry = RoutePolicy("undecided", drafter, 0, "adaptive", start, None)
        state, answers = sessions[start]
        schedule = adaptive_schedule(entry, priced.costs, priced.predictor, state, most)
        rounds_of = replay({drafter: trace}, schedule, {drafter: priced.logits(number)}, answers)
        spent = [one.seconds(at) for _, one in rounds_of]
        seconds.append(sum(spent))
        rounds += len(spent)
    return seconds, rounds


def aligned(runs: Runs) -> Runs:
    """The runs cut to the same number of output tokens."""
    size = min(trace.output_tokens for trace in runs.values())
    return {
        name: replace(trace, tokens=trace.tokens[: trace.prompt_tokens + size], agrees=trace.agrees[:size])
        for name, trace in runs.items()
    }


def routed_seconds(
    stream: Sequence[Runs], routing: Callable[[int], Routing], drafters: Mapping[str, Priced]
) -> tuple[list[float], list[list[str]]]:
    """(seconds of each request, the drafters of its rounds) of one session that chooses the drafter round by round.

    stream: from `aligned`. routing: what the session knows when the request of this number arrives. drafters: to choose
    from, the preferred one first.
    """
    states, ats = {name: RouteState() for name in drafters}, {name: cached(one.costs) for name, one in drafters.items()}
    most = min(one.costs.max_draft_tokens for one in drafters.values())
    answers, seconds = NgramCache(), list[float]()
    choices: list[list[str]] = []
    for number, runs in enumerate(stream):
        trace, known = next(iter(runs.values())), routing(number)
        candidates = {name: Candidate(one.costs, one.predictor, states[name]) for name, one in drafters.items()}
        schedule = RoutedSchedule(known, trace.tokens[: trace.prompt_tokens], candidates, most)
        logits = {name: one.logits(number) for name, one in drafters.items()}
        rounds = list(replay(runs, schedule, logits, answers))
        choices.append([name for name, _ in rounds])
        seconds.append(sum(one.seconds(ats[name]) for name, one in rounds))
    return seconds, choices


def start_of(traces: Iterable[Trace], drafter: str, costs: Costs) -> tuple[float, ...]:
    """What sessions start from that get requests like these: for each position, the chance that a draft token is
    accepted if all before it are; with a model, of its tokens.

    The share of the replayed rounds, with one success and one failure added.
    """
    most = costs.max_draft_tokens
    reached, accepted = [0] * most, [0] * most
    for trace in traces:
        for one in replay_fixed(trace, drafter, most):
            drafted = one.passes if model_of(drafter) else one.num_drafted
            for index in range(min(one.num_accepted + 1, drafted)):
                reached[index] += 1
                accepted[index] += index < one.num_accepted
    return tuple(round((a + 1) / (r + 2), 4) for a, r in zip(accepted, reached, strict=True))
