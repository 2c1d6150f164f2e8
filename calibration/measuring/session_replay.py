"""Replays recorded requests as a session runs them one after another: with one drafter that adapts, or choosing the
drafter round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...runtime.drafting.names import cascade_source_of, model_of, strip_cascade
from ...runtime.policy.confidence import AcceptancePredictor, adaptive_schedule
from ...runtime.policy.controller import RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routed_schedule import Candidate, RoutedSchedule
from ...runtime.policy.routes import RoutePolicy
from ...runtime.policy.routing import Routing
from .confidence import Reading
from .replay import ReplayedRound, Runs, replay, replay_fixed
from .traces import CostsAt, Trace, cached


@dataclass(frozen=True)
class AcceptancePrior:
    """What a session starts from: see `RoutePolicy`."""

    chances: tuple[float, ...]
    unit: float = 1.0


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

    def seconds(self, one: ReplayedRound, at: CostsAt) -> float:
        """The time of a round. at: `cached` of the costs."""
        return one.seconds(at) + (one.passes * self.reading.seconds if self.reading is not None else 0.0)


def adaptive_seconds(
    traces: Sequence[Trace], drafter: str, priced: Priced, starts: Sequence[AcceptancePrior]
) -> tuple[list[float], int]:
    """(seconds of every trace, number of rounds) of adaptive sessions with one drafter.

    starts: of every trace. Traces with equal ones belong to one session, which learns from one to the next.
    """
    at, most = cached(priced.costs), priced.costs.max_draft_tokens
    sessions = {start: (priced.costs.cascaded(start.unit), RouteState()) for start in dict.fromkeys(starts)}
    seconds, rounds = [], 0
    for number, (trace, start) in enumerate(zip(traces, starts, strict=True)):
        costs, state = sessions[start]
        entry = RoutePolicy("undecided", drafter, 0, "adaptive", start.chances, None)
        schedule = adaptive_schedule(entry, costs, priced.predictor, state, most)
        rounds_of = replay({drafter: trace}, schedule, {drafter: priced.logits(number)})
        spent = [priced.seconds(one, at) for _, one in rounds_of]
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
    seconds: list[float] = []
    choices: list[list[str]] = []
    for number, runs in enumerate(stream):
        trace, known = next(iter(runs.values())), routing(number)
        candidates = {
            name: Candidate(one.costs.cascaded(known.unit(name)), one.predictor, states[name])
            for name, one in drafters.items()
        }
        schedule = RoutedSchedule(known, trace.tokens[: trace.prompt_tokens], candidates, most)
        logits = {name: one.logits(number) for name, one in drafters.items()}
        rounds = list(replay(runs, schedule, logits))
        choices.append([name for name, _ in rounds])
        seconds.append(sum(drafters[name].seconds(one, ats[name]) for name, one in rounds))
    return seconds, choices


def start_of(traces: Sequence[Trace], drafter: str, costs: Costs) -> AcceptancePrior:
    """What sessions start from that get requests like these."""
    chances = conditional_acceptance_rates(traces, drafter, costs.max_draft_tokens)
    return AcceptancePrior(chances, relative_draft_cost(traces, drafter, costs))


def conditional_acceptance_rates(traces: Iterable[Trace], drafter: str, most: int) -> tuple[float, ...]:
    """For each position, the chance that a draft token is accepted if all before it are; with a model, of its tokens.

    The share of the replayed rounds, with one success and one failure added. most: draft tokens per round. A cascade
    does not change the chances.
    """
    drafter = strip_cascade(drafter)
    reached, accepted = [0] * most, [0] * most
    for trace in traces:
        for one in replay_fixed(trace, drafter, most):
            drafted = one.passes if model_of(drafter) else one.num_drafted
            for index in range(min(one.num_accepted + 1, drafted)):
                reached[index] += 1
                accepted[index] += index < one.num_accepted
    return tuple(round((a + 1) / (r + 2), 4) for a, r in zip(accepted, reached, strict=True))


def relative_draft_cost(traces: Iterable[Trace], drafter: str, costs: Costs) -> float:
    """The cost of a cascade's draft token after a round's first, in passes of the draft, at most 1; else 1.

    Measured on replayed rounds with the largest number of draft tokens.
    """
    if cascade_source_of(drafter) is None:
        return 1.0
    at, spent, whole = cached(costs), 0.0, 0.0
    for trace in traces:
        for one in replay_fixed(trace, drafter, costs.max_draft_tokens):
            if one.num_drafted:
                price = at(one.context + 1)
                spent += (one.passes - one.saved - 1) * price.draft + one.guess_rows * price.draft_row
                spent += one.guess_seconds
                whole += (one.num_drafted - 1) * price.draft
    return round(min(1.0, spent / whole), 4) if whole else 1.0
