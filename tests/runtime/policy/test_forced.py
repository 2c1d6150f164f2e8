"""The schedule of requests with a grammar: forced tokens come first, and teach nothing about the draft."""

from __future__ import annotations

import pytest
from specexport.runtime.drafting.rounds import RoundOutcome
from specexport.runtime.policy.schedule import Schedule, WithForcedTokens
from support.rounds import Wants, ask, sequence


class Forces:
    def __init__(self, count: int) -> None:
        self.count = count

    def forced(self, most: int) -> list[int]:
        return list(range(min(most, self.count)))


@pytest.mark.parametrize(
    ("drafts", "forced", "total"), [(0, 0, 0), (0, 3, 3), (2, 0, 2), (2, 1, 3), (3, 3, 4), (0, 9, 4)]
)
def test_forced_tokens_come_on_top(drafts: int, forced: int, total: int) -> None:
    schedule = WithForcedTokens(Wants(drafts), Forces(forced), 4, on_top=True)  # type: ignore[arg-type]
    assert isinstance(schedule, Schedule)
    assert schedule.needs_host
    plan = schedule.plan(sequence(10, 2))
    assert (plan.num_draft_tokens, plan.forced) == (total, tuple(range(min(forced, 4))))


@pytest.mark.parametrize(("drafts", "forced", "planned"), [(0, 3, 0), (2, 1, 1), (2, 3, 2)])
def test_of_a_number_that_was_asked_for_they_are_a_part(drafts: int, forced: int, planned: int) -> None:
    plan = WithForcedTokens(Wants(drafts), Forces(forced), 4).plan(sequence(10))  # type: ignore[arg-type]
    assert (plan.num_draft_tokens, plan.forced) == (drafts, tuple(range(planned)))


@pytest.mark.parametrize(
    ("outcome", "seen"), [((3, 3), [(1, 1)]), ((3, 2), [(1, 0)]), ((3, 1), []), ((2, 2), [(0, 0)]), ((2, 1), [])]
)
def test_only_what_the_draft_proposed_is_told(outcome: tuple[int, int], seen: list[tuple[int, int]]) -> None:
    inner = Wants(1)
    schedule = WithForcedTokens(inner, Forces(2), 4, on_top=True)  # type: ignore[arg-type]
    ask(schedule, 10, 2)
    drafted, accepted = outcome
    schedule.observe(RoundOutcome((0,) * drafted, ("grammar", "grammar", "model")[:drafted], accepted))
    assert inner.seen == seen
