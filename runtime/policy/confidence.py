"""Adaptive schedules that also read the draft's confidence between its passes, where calibration found that worth it.

A round drafts on while the expected tokens are worth their time at the rate that is reached anyway
(docs/when-it-pays.md):

    draft token j + 1 iff some m > j has  sum_{i=j+1..m} a_i  >  rate * ((m - j) * d + v(m + 1) - v(j + 1))

where a_i is the probability that token i and all before it are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ...engines.base import Logits
from ..drafting.names import model_of
from ..drafting.rounds import RoundPlan, SequenceState
from .controller import FARTHEST, REQUEST_RATE, ROUTE_RATE, AdaptiveSchedule, RouteState, bounded, sigmoid
from .cost_model import Costs
from .routes import RoutePolicy

LEAST = sigmoid(-FARTHEST)

# (index in the draft, logits `[rows, vocab]` of the draft's pass) -> probability of the token to be accepted when all
# before it are
AcceptancePredictor = Callable[[int, Logits], float]


class ConfidentSchedule(AdaptiveSchedule):
    """Two numbers follow the outcomes: whether tokens are accepted as often as the confidence says, and whether first
    tokens look as good as expected, so that a draft that never has anything worth including is no longer asked.
    """

    def __init__(
        self, entry: RoutePolicy, costs: Costs, state: RouteState, most: int, predictor: AcceptancePredictor
    ) -> None:
        super().__init__(entry, costs, state, most)
        self.needs_host = True
        self._predictor = predictor
        self._calibration = 0.0  # logits, of this request
        self._read: list[float] = []  # acceptance probabilities of this round's draft tokens
        self._alive = self._trust = 1.0

    def plan(self, sequence: SequenceState) -> RoundPlan:
        plan = super().plan(sequence)
        self._read, self._alive = [], 1.0
        self._trust = math.exp(self._calibration + self._state.calibration)
        if not plan.num_draft_tokens:
            return plan
        return replace(plan, num_draft_tokens=self._most, draft_stop=self)

    def go_on(self, num_drafted: int) -> bool:
        if not self._allowed:
            return False
        return not num_drafted or (num_drafted < self._most and self._pays(num_drafted, self._alive))

    def include(self, index: int, logits: Logits) -> bool:
        self._passes += 1
        self._match = None
        if not self._allowed:
            return False
        chance = min(max(self._predictor(index, logits), LEAST), 1.0 - LEAST)
        odds = chance * self._trust
        chance = odds / (1.0 - chance + odds)
        if index == 0:
            self._learn(chance - self._expected[0])
        alive = self._alive * chance
        worth = alive - self._rate * (self._verify[index + 1] - self._verify[index])
        # The first token of an explored round is always verified: else a draft that is trusted too little would never
        # be tried again.
        if not (worth > 0 or self._pays(index + 1, alive, worth) or (self._explores and index == 0)):
            return False
        self._read.append(chance)
        self._alive = alive
        return True

    def _accepted(self, drafted: int) -> float:
        return self._alive if self._read else super()._accepted(drafted)

    def _learn_from(self, by_model: int, right: int) -> None:
        if not self._read:
            super()._learn_from(by_model, right)
            return
        error = right - sum(self._read[: right + (right < by_model)])
        self._calibration = bounded(self._calibration + REQUEST_RATE * error)
        self._state.calibration = bounded(self._state.calibration + ROUTE_RATE * error)

    def _pays(self, drafted: int, alive: float, gain: float = 0.0) -> bool:
        """Whether some number of further tokens gains more than its time is worth. gain: tokens gained already."""
        verify, draft = self._verify, self._table.draft
        for index in range(drafted, self._most):
            alive *= self._expected[index]
            gain += alive - self._rate * (draft + verify[index + 1] - verify[index])
            if gain > 0:
                return True
        return False


def adaptive_schedule(
    entry: RoutePolicy, costs: Costs, predictor: AcceptancePredictor | None, state: RouteState, most: int
) -> AdaptiveSchedule:
    """The schedule of a request. predictor: reads the draft model's confidence; None where it is not read."""
    if predictor is None or model_of(entry.drafter) is None:
        return AdaptiveSchedule(entry, costs, state, most)
    return ConfidentSchedule(entry, costs, state, most, predictor)
