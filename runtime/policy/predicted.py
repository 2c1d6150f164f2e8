"""The schedule of a request with a prediction: the prediction's tokens are added to those that are drafted."""

from __future__ import annotations

from ...engines.base import Logits
from ..drafting.guide import Guide
from .schedule import Schedule


class BesidePrediction:
    """Lets the prediction fill every round, and asks another schedule about tokens of a model or of other lookups.

    That schedule learns from its own tokens only: where the prediction is right says nothing about them. It is asked
    when the prediction has nothing for a round, so that a saved-up probe is not spent on a round without room for it.
    """

    needs_host = True

    def __init__(self, schedule: Schedule, most: int, learns: bool = True, with_model: bool = True) -> None:
        """most: draft tokens per round. learns: whether `schedule` is told the outcome of its tokens; not where tokens
        of a grammar come before them. with_model: whether it decides for a draft model. Lookups alone ask nothing where
        they find nothing, so `schedule` is asked about such a round when it is over.
        """
        self._schedule, self._most, self._learns, self._with_model = schedule, most, learns, with_model
        self._asked = schedule.guide
        self.guide: Guide | None = self
        self._round = 0, 0  # length and behind, as of `next`
        self._begun = False  # whether the schedule was asked about a round whose outcome it does not know yet
        self._count = self._own = 0  # tokens that the schedule allows in it, and those taken

    def next(self, length: int, behind: int) -> int:
        self._round, self._own = (length, behind), 0
        return self._most

    @property
    def _allowed(self) -> int:
        """Tokens that the schedule allows in this round."""
        if not self._begun:
            self._count, self._begun = self._schedule.next(*self._round), True
        return self._count

    def include(self, index: int, logits: Logits) -> bool:
        taken = index < self._allowed and (self._asked is None or self._asked.include(index, logits))
        self._own += taken
        return taken

    def go_on(self, num_drafted: int) -> bool:
        return num_drafted < self._allowed and (self._asked is None or self._asked.go_on(num_drafted))

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        allowed = self._allowed
        if self._asked is not None:
            taken = self._asked.looked_up(count, length, drafted)
        else:
            taken = min(count, max(0, allowed - drafted))
        self._own += taken
        return taken

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        begun = self._begun or not (num_drafted or self._with_model)
        if not begun or (num_drafted and not self._own):  # the schedule's answer stands for the next round
            return
        _ = self._allowed
        self._begun = False
        if self._learns:
            own = min(self._own, num_drafted)
            self._schedule.observe(own, min(num_accepted, own))
