"""Replays recorded requests as run by a session that chooses the drafter round by round.

Each request was recorded with each draft. Under greedy decoding all records have the same text, and the replay is as
exact as that of one draft (`trace_replay.py`). When sampling, each record has its own text, cut to the shortest here,
and a round continues in the record of its own drafter at the same position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...runtime.drafting.rounds import SequenceState
from ...runtime.policy.confidence import AcceptancePredictor
from ...runtime.policy.controller import RouteState
from ...runtime.policy.cost_model import Costs
from ...runtime.policy.routed_schedule import Candidate, RoutedSchedule
from ...runtime.policy.routing import Routing
from .adaptive_replay import Reading
from .trace_replay import Replayer, round_seconds
from .traces import CostsAt, Trace, cached

Runs = Mapping[str, Trace]  # one request, by drafter: as it was recorded with that one's draft


@dataclass(frozen=True)
class Priced:
    """Costs of a drafter. reading: its draft's confidence for every request of the stream, None if it is not read."""

    costs: Costs
    reading: Reading | None = None

    @property
    def chance(self) -> AcceptancePredictor | None:
        reading = self.reading
        return (lambda index, row: reading.survival.chance(index, float(row[0, 0]))) if reading is not None else None


def aligned(runs: Runs) -> Runs:
    """The runs cut to the same number of output tokens."""
    size = min(trace.output_tokens for trace in runs.values())
    return {
        name: replace(trace, tokens=trace.tokens[: trace.prompt_tokens + size], agrees=trace.agrees[:size])
        for name, trace in runs.items()
    }


def replay_routed(
    stream: Sequence[Runs], routing: Callable[[int], Routing], drafters: Mapping[str, Priced]
) -> tuple[list[float], list[list[str]]]:
    """(seconds of each request, the drafters of its rounds) of one session that runs the requests one after another.

    stream: from `aligned`. routing: what the session knows when the request of this number arrives. drafters: to choose
    from, the preferred one first. The time of a draft's prefill counts for every draft but the first that drafts: a
    draft that drafts alone has to prefill too, and its replay does not count that either.
    """
    states = {name: RouteState() for name in drafters}
    ats = {name: cached(one.costs) for name, one in drafters.items()}
    candidates = {name: Candidate(one.costs, one.chance, states[name]) for name, one in drafters.items()}
    most = min(one.costs.max_draft_tokens for one in drafters.values())
    seconds, choices = [], []
    for number, runs in enumerate(stream):
        first = next(iter(runs.values()))
        prompt = first.tokens[: first.prompt_tokens]
        known = routing(number)
        believed = {name: replace(one, costs=one.costs.chained(known.unit(name))) for name, one in candidates.items()}
        schedule = RoutedSchedule(known, prompt, believed, most)
        logits = {name: one.reading.logits[number] if one.reading else () for name, one in drafters.items()}
        request = _Request(runs, logits, drafters, ats)
        choices.append(request.run(schedule))
        seconds.append(request.seconds)
    return seconds, choices


class _Request:
    def __init__(
        self,
        runs: Runs,
        logits: Mapping[str, Sequence[float]],
        drafters: Mapping[str, Priced],
        ats: Mapping[str, CostsAt],
    ) -> None:
        first = next(iter(runs.values()))
        self._place, self._end, self._prompt = first.prompt_tokens, len(first.tokens), first.prompt_tokens
        self._replayers = {name: Replayer(trace, name, logits[name]) for name, trace in runs.items()}
        self._drafters, self._ats = drafters, ats
        self._missed = dict.fromkeys(runs, first.prompt_tokens)  # rows that are missing because others drafted
        self.seconds = 0.0

    def run(self, schedule: RoutedSchedule) -> list[str]:
        chosen = []
        while self._place < self._end:
            plan = schedule.plan(SequenceState(self._place, self._lacking))
            name = str(plan.drafter)
            one = self._replayers[name].round(self._place, plan.num_draft_tokens, plan.guide)
            schedule.observe(one.outcome)
            self.seconds += round_seconds(one, self._ats[name])
            if one.passes:
                own = self._drafters[name]
                self.seconds += (self._missed[name] - self._prompt) * own.costs.draft_prefill
                self.seconds += one.passes * own.reading.seconds if own.reading is not None else 0.0
                self._missed[name] = self._prompt = 0
            for other in self._missed:
                self._missed[other] += (one.num_accepted + 1) * (other != name)
            chosen.append(name)
            self._place += one.num_accepted + 1
        return chosen

    def _lacking(self, drafter: str) -> int:
        return self._missed[drafter] + self._replayers[drafter].behind + 1
