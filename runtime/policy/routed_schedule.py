"""Which drafter drafts each round of a request that names no route, and how many tokens.

The drafter with the highest expected gain drafts: its expected speedup, by the posterior of the request's route, less
the time in which its cache catches up. A schedule of its own decides how many tokens it drafts. The choice looks at the
prompt and at rounds that are over, never at the round that it is for, so the output stays the target's own
(docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..drafting.names import model_of
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from .confidence import AcceptancePredictor, adaptive_schedule
from .controller import RouteState
from .cost_model import Costs
from .routes import RoutePolicy
from .routing import RoutePosterior, Routing

# Plain rounds over which the time to catch up is spread; 24 to 96 gave the same.
HORIZON = 48
# The choice is made again in the next round, after 2, 4 and then every 8 rounds, as long as it stays the same. Between
# passes of the target the CPU's caches are cold: choosing took 60 us a round, 1 to 2 % (docs/internals/log.md).
MAX_GAP = 8


@dataclass(frozen=True)
class Candidate:
    """A candidate drafter. costs: of rounds with it. predictor: reads its draft's confidence, if that is read.
    state: what is remembered of it between requests.
    """

    costs: Costs
    predictor: AcceptancePredictor | None
    state: RouteState


class RoutedSchedule:
    """Of one request; implements `Schedule`. schedules: by drafter.

    Every round that a model drafts counts in the posterior, from the next choice on. Rounds that are plain or looked up
    tell nothing about the models, but each schedule explores with its own.
    """

    needs_host = True

    def __init__(self, routing: Routing, prompt: Sequence[int], candidates: Mapping[str, Candidate], most: int) -> None:
        """prompt: token ids. candidates: by name, some of the routing's drafters, the preferred one first. most: draft
        tokens per round.
        """
        self._posterior = RoutePosterior(routing, prompt)
        self.schedules = {
            name: adaptive_schedule(
                RoutePolicy("undecided", name, 0, "adaptive", self._posterior.chances(name), None),
                one.costs,
                one.predictor,
                one.state,
                most,
            )
            for name, one in candidates.items()
        }
        self._drafter = next(iter(candidates))  # of the newest round
        self._sequence = SequenceState(len(prompt), lambda drafter: 0)
        # Of requests that others must not influence: how long the sequence was when each last drafted in this one.
        self._fed = dict.fromkeys([name for name, one in candidates.items() if one.state.alone], 0)
        self._unseen: list[tuple[int, int]] = []  # outcomes that the posterior does not have yet
        self._gap = self._left = 0  # rounds from one choice to the next, and of those to come
        # Plain rounds that a row of the cache takes.
        self._prefill = {
            name: one.costs.draft_prefill / one.costs.at(len(prompt)).plain if model_of(name) is not None else 0.0
            for name, one in candidates.items()
        }

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._sequence = sequence
        if self._left:
            self._left -= 1
        else:
            self._choose()
        return replace(self.schedules[self._drafter].plan(sequence), drafter=self._drafter)

    def observe(self, outcome: RoundOutcome) -> None:
        self.schedules[self._drafter].observe(outcome)
        if outcome.of_model[0]:
            self._unseen.append(outcome.of_model)
            if self._drafter in self._fed:
                self._fed[self._drafter] = self._sequence.length

    def _choose(self) -> None:
        for drafted, accepted in self._unseen:
            self._posterior.observe(self._drafter, drafted, accepted)
        self._unseen.clear()
        chosen = max(self.schedules, key=self._gain)
        self._gap = min(max(1, 2 * self._gap), MAX_GAP)
        if chosen != self._drafter:
            self.schedules[chosen].resume()
            self._gap = 1
        self._drafter, self._left = chosen, self._gap - 1

    def _gain(self, drafter: str) -> float:
        prefill, sequence, lacking = self._prefill[drafter], self._sequence, 0
        if prefill:
            fed = self._fed.get(drafter)
            lacking = sequence.missing_rows(drafter) if fed is None else sequence.length - fed
        return self._posterior.speedups[drafter] / (1.0 + prefill * lacking / HORIZON)
