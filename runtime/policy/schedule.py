"""What plans the rounds of a request, and the simplest of that kind: the same number of draft tokens every round."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState


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
