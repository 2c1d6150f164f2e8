"""Short forms of what the loop does with schedules and drafts, for tests that play its part."""

from __future__ import annotations

from collections.abc import Sequence

from specexport.runtime.drafting.drafters import Draft
from specexport.runtime.drafting.rounds import DraftStop, RoundOutcome, RoundPlan, SequenceState, Source
from specexport.runtime.policy.schedule import Schedule


def sequence(length: int, missing_rows: int = 0) -> SequenceState:
    return SequenceState(length, lambda _: missing_rows)


def ask(schedule: Schedule, length: int, missing_rows: int = 0) -> int:
    """How many tokens the schedule wants drafted."""
    return schedule.plan(sequence(length, missing_rows)).num_draft_tokens


def outcome(num_drafted: int, num_accepted: int, source: Source = "model") -> RoundOutcome:
    return RoundOutcome((0,) * num_drafted, (source,) * num_drafted, num_accepted, (0,))


class Wants:
    """A schedule that wants so many tokens in its rounds, the last number for all further ones. seen: (drafted,
    accepted) of each outcome.
    """

    needs_host = False

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.seen: list[tuple[int, int]] = []

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return RoundPlan(self.counts.pop(0) if len(self.counts) > 1 else self.counts[0])

    def observe(self, outcome: RoundOutcome) -> None:
        self.seen.append((outcome.num_drafted, outcome.num_accepted))


def tell(schedule: Schedule, num_drafted: int, num_accepted: int, found: int = 0) -> None:
    """found: how many of the tokens, the last ones, were looked up."""
    sources: list[Source] = ["model"] * (num_drafted - found) + ["lookup"] * found  # type: ignore[operator]
    schedule.observe(RoundOutcome((0,) * num_drafted, tuple(sources), num_accepted, (0,)))


def propose(draft: Draft, tokens: Sequence[int], count: int, draft_stop: DraftStop | None = None) -> list[int]:
    return draft.propose(tokens, RoundPlan(count, draft_stop=draft_stop)).tokens


def prefill(draft: Draft, tokens: Sequence[int], draft_stop: DraftStop | None = None) -> None:
    draft.prefill(tokens, RoundPlan(4, draft_stop=draft_stop))


def match(length: int, count: int) -> range:
    """The odds of `count` tokens that continue a match of `length`."""
    return range(length - 1, length - 1 + count)
