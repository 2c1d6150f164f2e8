"""The schedule of a request with a grammar: what the grammar forces comes beside the tokens that are drafted."""

from __future__ import annotations

from ..drafting.guide import Guide
from ..sampling.rules import Rule
from .schedule import Schedule


class BesideForced:
    """Asks another schedule about the tokens of a model or a lookup only, and tells it of no others.

    Forced tokens stand whatever the draft is worth, so they say nothing about it, and rounds that would be plain
    propose them too.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, rule: Rule, most: int) -> None:
        """most: draft tokens a round."""
        self._schedule, self._rule, self._most = schedule, rule, most
        self.guide: Guide | None = schedule.guide
        self._forced = 0

    def next(self, length: int, behind: int) -> int:
        self._forced = len(self._rule.forced(self._most))
        return min(self._most, self._forced + self._schedule.next(length, behind))

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if num_accepted >= self._forced:
            self._schedule.observe(max(0, num_drafted - self._forced), num_accepted - self._forced)
