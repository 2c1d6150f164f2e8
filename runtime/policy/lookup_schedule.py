"""How many tokens to draft where lookups draft too, alone or with a model.

A match is taken as far as its probability, which follows from its length (`lookup_worth.py`), is worth the rows that it
adds to the verify pass, and only where that gains more than the model would. Rows of a match are compared with the rate
of the last rounds, tokens of the model with the rate that the model alone would reach: matches come in stretches, and
outside these the output does not continue at their rate.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from ...engines.base import Logits
from ..drafting.names import model_of, unguessed
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from .cost_model import Costs
from .lookup_worth import PROBE_TOKENS, LookupWorth
from .pace import Pace
from .routes import RoutePolicy
from .schedule import PROBE_BUDGET, AdaptiveSchedule, Chance, RouteState

# About how many rounds the reached rate is a mean of; as how many rounds the rate of drafts without lookups counts at
# first; and how far the rate moves before the model's part is planned anew.
ROUNDS = 6.0
PRIOR = 8.0
MOVED = 0.03


def adaptive_schedule(
    entry: RoutePolicy, costs: Costs, chance: Chance | None, state: RouteState, most: int
) -> AdaptiveSchedule:
    """The schedule of a request, by its drafter; arguments of `AdaptiveSchedule`."""
    looks_up = unguessed(entry.drafter) != model_of(entry.drafter)
    return (LookupSchedule if looks_up else AdaptiveSchedule)(entry, costs, chance, state, most)


class LookupSchedule(AdaptiveSchedule):
    """For one request and drafters with a lookup; always asked while a round drafts."""

    needs_host = True

    def __init__(self, entry: RoutePolicy, costs: Costs, chance: Chance | None, state: RouteState, most: int) -> None:
        super().__init__(entry, costs, chance if model_of(entry.drafter) else None, state, most)
        self._worth = LookupWorth(state.lookups, entry.verdict == "off")
        self._allowed = 0  # draft tokens of the model in this round
        self._without = False  # whether this round has no lookup
        self._reached = 0.0  # tokens per second, recently
        self._alive_at: list[float] = []  # by draft tokens of the model: the probability that all are accepted,
        self._gains: list[float] = []  # what they gain over a plain round, in tokens,
        self._rows: list[float] = []  # and what the time of their rows in the verify pass is worth

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._guide = self
        return RoundPlan(self._begin(sequence), None, (), self, self.leaves if self._with_model else None)

    def _begin(self, sequence: SequenceState) -> int:
        known = self._state.lookups
        reached = known.tokens / known.seconds if known.seconds else 0.0
        if abs(reached - self._reached) > MOVED * reached:
            self._reached, self._prior = reached, None
        self._worth.begin()
        if self._with_model:
            self._allowed = super()._begin(sequence)
            self._without = self._turned or self._probing
        else:
            self._look_up_costs(sequence.length, 1.0)
            if self._prior is None:
                self._prior = 0.0
                self._best, self._rate = self._plan([])
        if not known.seconds:
            known.seconds = PRIOR * self._table.plain
            known.tokens = known.seconds * self._rate
        return self._allowed if self._without else self._most

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        if self._without:
            return 0
        alive = self._alive if self._read else self._alive_at[drafted] if drafted else 1.0
        least = max(0.0, self._gains[self._best] - self._gains[drafted]) if self._allowed else 0.0
        taken = self._worth.take((count, length), drafted, alive, self._rows, least)
        if not taken and not drafted:
            price = self._verify[min(count, PROBE_TOKENS)] - self._verify[0] + least / self._rate
            taken = self._worth.probe((count, length), price, PROBE_BUDGET * self._table.plain)
        return taken

    def include(self, index: int, logits: Logits) -> bool:
        self._worth.begin()  # the lookup that came first was not legal
        if self._chance is not None:
            return super().include(index, logits)
        self._passes += 1
        return index < self._allowed

    def go_on(self, num_drafted: int) -> bool:
        if num_drafted and self._chance is not None:
            return super().go_on(num_drafted)
        return num_drafted < self._allowed

    def observe(self, outcome: RoundOutcome) -> None:
        num_drafted, num_accepted = outcome.num_drafted, outcome.num_accepted
        if outcome.judged_leaves is not None:
            self.leaves.learn(outcome.judged_leaves)
        self._worth.observe(num_drafted, num_accepted)
        if self._state.pace:
            self._time(self._state.pace, outcome)
        known, keep = self._state.lookups, 1.0 - 1.0 / ROUNDS
        known.tokens = keep * known.tokens + num_accepted + 1
        passes = self._passes - num_drafted  # more than tokens, or fewer
        known.seconds = keep * known.seconds + self._rounds[num_drafted] + passes * self._draft
        if outcome.of_model[0]:
            self._learn(*outcome.of_model)

    def _plan(self, chances: list[float]) -> tuple[int, float]:
        best, rate = super()._plan(chances)
        self._alive_at = list(accumulate(chances, mul, initial=1.0))
        tokens, plain = accumulate(self._alive_at[1:], initial=0.0), self._rounds[0]
        self._gains = [alive - rate * (seconds - plain) for alive, seconds in zip(tokens, self._rounds, strict=False)]
        self._rows = [max(rate, self._reached) * seconds for seconds in self._verify]
        return best, rate

    def _time(self, pace: Pace, outcome: RoundOutcome) -> None:
        if outcome.draft_tokens and not self._passes:  # neither of the two kinds
            self._had_draft = -1
        else:
            super()._time(pace, outcome)
