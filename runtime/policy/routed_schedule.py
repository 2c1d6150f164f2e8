"""Which drafter drafts each round of a request that names no route, and how many tokens.

The drafter with the highest expected gain drafts: its expected speedup, by the estimate of the request's route, less
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
from .route_belief import Belief, Routing
from .routes import RoutePolicy

# The fraction of the time of rounds that tell nothing, for trying another model.
PROBE_BUDGET = 0.01
# Plain rounds over which the time to catch up is spread; 24 to 96 give the same (docs/internals/log.md).
HORIZON = 48
# The choice is made again in the next round, after 2, 4 and then every 8 rounds, as long as it stays the same. Between
# passes of the target the CPU's caches are cold: looking took 60 us a round, 1 to 2 % (docs/internals/log.md).
RAREST = 8


@dataclass(frozen=True)
class Candidate:
    """A candidate drafter. costs: of rounds with it. chance: reads its draft's confidence, None where that is not read.
    state: what is remembered of it between requests.
    """

    costs: Costs
    chance: AcceptancePredictor | None
    state: RouteState


@dataclass
class Purse:
    """Of a session: time, in plain rounds, saved up for rounds with a drafter that is not expected to be best."""

    saved: float = 0.0


class RoutedSchedule:
    """Of one request; implements `Schedule`. schedules: by drafter.

    Every round that a model drafts counts in the estimate of the route, from the next look at it on: the longer the
    choice has stayed the same, the more rounds lie between two looks. Rounds that are plain or looked up tell nothing,
    so there another model is tried once `PROBE_BUDGET` of their time has paid for it.
    """

    needs_host = True

    def __init__(
        self,
        routing: Routing,
        prompt: Sequence[int],
        candidates: Mapping[str, Candidate],
        most: int,
        purse: Purse | None = None,
    ) -> None:
        """prompt: token ids. candidates: by name, some of the routing's drafters, the preferred one first. most: draft
        tokens per round. purse: None for a request of its own, which what others left in caches must not influence.
        """
        self._belief = Belief(routing, prompt)
        self.schedules = {
            name: adaptive_schedule(
                RoutePolicy("undecided", name, 0, "adaptive", self._belief.chances(name), None),
                one.costs,
                one.chance,
                one.state,
                most,
            )
            for name, one in candidates.items()
        }
        self._models = [name for name in candidates if model_of(name) is not None]
        self._alone, self._purse = purse is None, purse or Purse()
        self._drafter = next(iter(candidates))  # of the newest round
        self._sequence = SequenceState(len(prompt), lambda drafter: 0)
        self._fed = dict.fromkeys(candidates, 0)  # how long the sequence was when it last drafted in this request
        self._heard: list[tuple[int, int]] = []  # outcomes of its rounds that the belief does not have yet
        self._gap = 0  # rounds from the last look to the next
        self._left = 0  # rounds without a look, to come
        plain = {name: one.costs.at(len(prompt)).plain for name, one in candidates.items()}
        # Plain rounds that a row of the cache takes.
        self._prefill = {name: one.costs.draft_prefill / plain[name] for name, one in candidates.items()}

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._sequence = sequence
        if self._left:
            self._left -= 1
        else:
            self._look()
        return replace(self.schedules[self._drafter].plan(sequence), drafter=self._drafter)

    def observe(self, outcome: RoundOutcome) -> None:
        self.schedules[self._drafter].observe(outcome)
        if outcome.of_model[0]:
            self._heard.append(outcome.of_model)
            self._fed[self._drafter] = self._sequence.length
        else:
            self._purse.saved += PROBE_BUDGET

    def _look(self) -> None:
        """Choose who drafts."""
        for drafted, accepted in self._heard:
            self._belief.observe(self._drafter, drafted, accepted)
        self._heard.clear()
        lacking = {name: self._lacking(name) for name in self.schedules}
        promises = {name: self._promise(name, rows) for name, rows in lacking.items()}
        chosen = max(promises, key=promises.__getitem__)
        chosen = self._probe(chosen, promises, lacking) or chosen
        self._gap = min(max(1, 2 * self._gap), RAREST)
        if chosen != self._drafter:
            self.schedules[chosen].resume()
            self._gap = 1
        self._drafter, self._left = chosen, self._gap - 1

    def _lacking(self, drafter: str) -> int:
        if drafter not in self._models:
            return 0
        sequence = self._sequence
        return sequence.length - self._fed[drafter] if self._alone else sequence.missing_rows(drafter)

    def _promise(self, drafter: str, lacking: int) -> float:
        return self._belief.speedups[drafter] / (1.0 + self._prefill[drafter] * lacking / HORIZON)

    def _probe(self, best: str, promises: Mapping[str, float], lacking: Mapping[str, int]) -> str | None:
        """Another model, if enough was saved for what its round loses and for the rows that its cache lacks."""
        if not self._purse.saved:
            return None
        others = [name for name in self._models if name != best]
        if not others:
            return None
        other = max(others, key=promises.__getitem__)
        speedups = self._belief.speedups
        loses = max(0.0, 1.0 - speedups[other] / speedups[best])
        price = loses + self._prefill[other] * lacking[other]
        if self._purse.saved < price:
            return None
        self._purse.saved -= price
        return other
