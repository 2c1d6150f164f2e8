"""The schedule of a request with a prediction: the prediction's tokens are added to those that are drafted."""

from __future__ import annotations

from ...engines.base import Logits
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from .schedule import Schedule


class WithPrediction:
    """Lets the prediction fill every round, and asks another schedule about tokens of a model or of other lookups.

    That schedule learns from its own tokens only: where the prediction is right says nothing about them. It is asked
    when the prediction has nothing for a round, so that a saved-up probe is not spent on a round without room for it.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, most: int, with_model: bool = True) -> None:
        """most: draft tokens per round. with_model: whether `schedule` decides for a draft model. Lookups alone ask
        nothing where they find nothing, so it is asked about such a round when it is over.
        """
        self._schedule, self._most, self._with_model = schedule, most, with_model
        self._sequence: SequenceState
        self._plan: RoundPlan | None = None  # for a round whose outcome the schedule does not know yet

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._sequence = sequence
        return RoundPlan(self._most, guide=self)

    @property
    def _asked(self) -> RoundPlan:
        """What the schedule wants of this round."""
        if self._plan is None:
            self._plan = self._schedule.plan(self._sequence)
        return self._plan

    def include(self, index: int, logits: Logits) -> bool:
        plan = self._asked
        return index < plan.num_draft_tokens and (plan.guide is None or plan.guide.include(index, logits))

    def go_on(self, num_drafted: int) -> bool:
        plan = self._asked
        return num_drafted < plan.num_draft_tokens and (plan.guide is None or plan.guide.go_on(num_drafted))

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        plan = self._asked
        if plan.guide is not None:
            return plan.guide.looked_up(count, length, drafted)
        return min(count, max(0, plan.num_draft_tokens - drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        own = sum(source != "prediction" for source in outcome.sources)  # its tokens come first
        plain = not (outcome.draft_tokens or self._with_model)
        if (self._plan is None and not plain) or (outcome.draft_tokens and not own):
            return  # the schedule's answer stands for the next round
        _ = self._asked
        self._plan = None
        self._schedule.observe(outcome.part(0, own))
