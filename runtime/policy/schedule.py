"""What plans the rounds of a request, and the schedules that learn nothing themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from ...engines.base import Logits
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ..sampling.rules import Rule


@runtime_checkable
class Schedule(Protocol):
    """Of one request. needs_host: whether the host has to run the rounds. Order of calls: `drafting/rounds.py`."""

    needs_host: bool

    def plan(self, sequence: SequenceState) -> RoundPlan:
        """What to do in the next round."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn what the round did."""
        ...


class FixedSchedule:
    """The same number every round."""

    needs_host = False

    def __init__(self, num_draft_tokens: int) -> None:
        self._plan = RoundPlan(num_draft_tokens)

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return self._plan

    def observe(self, outcome: RoundOutcome) -> None:
        pass


class WithForcedTokens:
    """Of a request with a grammar: tokens that the grammar forces come before those that another schedule wants.

    They are accepted however good the draft is, so that schedule is told of its own tokens only; even plain rounds
    propose forced ones.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, rule: Rule, most: int, on_top: bool = False) -> None:
        """most: draft tokens per round. on_top: whether forced tokens are added to those that `schedule` wants; else
        they are among them.
        """
        self._schedule, self._rule, self._most, self._on_top = schedule, rule, most, on_top

    def plan(self, sequence: SequenceState) -> RoundPlan:
        plan = self._schedule.plan(sequence)
        forced = tuple(self._rule.forced(self._most if self._on_top else plan.num_draft_tokens))
        count = plan.num_draft_tokens + len(forced) * self._on_top
        return replace(plan, num_draft_tokens=min(self._most, count), forced=forced)

    def observe(self, outcome: RoundOutcome) -> None:
        forced = outcome.sources.count("grammar")
        if outcome.num_accepted >= forced:
            self._schedule.observe(outcome.part(forced, outcome.num_drafted))


class WithPrediction:
    """Of a request with a prediction, which may fill every round; another schedule plans what a model or other lookups
    draft.

    That schedule learns from its own tokens only: where the prediction is right says nothing about them. It plans when
    the prediction has nothing for a round, so that a saved-up probe is not spent on a round without room for it.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, most: int, with_model: bool = True) -> None:
        """most: draft tokens per round. with_model: whether `schedule` decides for a draft model. Lookups alone need no
        plan where they find nothing, so it plans such a round when it is over.
        """
        self._schedule, self._most, self._with_model = schedule, most, with_model
        self._sequence: SequenceState
        self._plan: RoundPlan | None = None  # for a round whose outcome the schedule does not know yet

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._sequence = sequence
        return RoundPlan(self._most, draft_stop=self)

    def _inner(self) -> RoundPlan:
        if self._plan is None:
            self._plan = self._schedule.plan(self._sequence)
        return self._plan

    def include(self, index: int, logits: Logits) -> bool:
        plan = self._inner()
        return index < plan.num_draft_tokens and (plan.draft_stop is None or plan.draft_stop.include(index, logits))

    def go_on(self, num_drafted: int) -> bool:
        plan = self._inner()
        return num_drafted < plan.num_draft_tokens and (plan.draft_stop is None or plan.draft_stop.go_on(num_drafted))

    def looked_up(self, odds: Sequence[float], drafted: int) -> int:
        plan = self._inner()
        if plan.draft_stop is not None:
            return plan.draft_stop.looked_up(odds, drafted)
        return min(len(odds), max(0, plan.num_draft_tokens - drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        others = sum(source != "prediction" for source in outcome.sources)  # these tokens come first
        plain = not (outcome.draft_tokens or self._with_model)
        if (self._plan is None and not plain) or (outcome.draft_tokens and not others):
            return  # the schedule's plan stands for the next round
        self._inner()
        self._plan = None
        self._schedule.observe(outcome.part(0, others))
