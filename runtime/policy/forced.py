"""The schedule of a request with a grammar: tokens that the grammar forces are added to those that are drafted."""

from __future__ import annotations

from ..drafting.guide import Guide
from ..sampling.rules import Rule
from .schedule import Schedule


class BesideForced:
    """Asks another schedule about tokens of a model or a lookup only, and reports only the outcome of those to it.

    Forced tokens are accepted however good the draft is, so they say nothing about it; even plain rounds propose them.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, rule: Rule, most: int) -> None:
        """most: draft tokens per round."""
        self._schedule, self._rule, self._most = schedule, rule, most
        self.guide: Guide | None = schedule.guide
        self._forced = 0

    def next(self, length: int, behind: int) -> int:
        self._forced = len(self._rule.forced(self._most))
        return min(self._most, self._forced + self._schedule.next(length, behind))

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if num_accepted >= self._forced:
            self._schedule.observe(max(0, num_drafted - self._forced), num_accepted - self._forced)
