"""The schedule of a request with a grammar: tokens that the grammar forces come before those that are drafted."""

from __future__ import annotations

from dataclasses import replace

from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from ..sampling.rules import Rule
from .schedule import Schedule


class WithForcedTokens:
    """Asks another schedule about tokens of a model or a lookup only, and reports only the outcome of those to it.

    Forced tokens are accepted however good the draft is, so they say nothing about it; even plain rounds propose them.
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
