"""The schedule of a request with a prediction: what that says comes beside the tokens that are drafted."""

from __future__ import annotations

from ...engines.base import Logits
from ..drafting.guide import Guide
from .schedule import Schedule


class BesidePrediction:
    """Lets the prediction fill every round, and asks another schedule about tokens of a model or of other lookups.

    That is told of its own tokens only: what the prediction has right says nothing about them.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, most: int, learns: bool = True) -> None:
        """most: draft tokens a round. learns: whether `schedule` hears what became of its tokens; not where tokens of
        a grammar stand in front of them.
        """
        self._schedule, self._most, self._learns = schedule, most, learns
        self._asked = schedule.guide
        self.guide: Guide | None = self
        self._count = self._own = 0  # tokens that the schedule allows in this round, and those that were taken

    def next(self, length: int, behind: int) -> int:
        self._count, self._own = self._schedule.next(length, behind), 0
        return self._most

    def include(self, index: int, logits: Logits) -> bool:
        taken = index < self._count and (self._asked is None or self._asked.include(index, logits))
        self._own += taken
        return taken

    def go_on(self, num_drafted: int) -> bool:
        return num_drafted < self._count and (self._asked is None or self._asked.go_on(num_drafted))

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        if self._asked is not None:
            taken = self._asked.looked_up(count, length, drafted)
        else:
            taken = min(count, max(0, self._count - drafted))
        self._own += taken
        return taken

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if self._learns and (self._own or not num_drafted):
            own = min(self._own, num_drafted)
            self._schedule.observe(own, min(num_accepted, own))
