"""The schedule of requests with a grammar: forced tokens come on top, and teach nothing about the draft."""

from __future__ import annotations

import pytest
from specexport.runtime.policy.forced import BesideForced
from specexport.runtime.policy.schedule import Schedule


class Asked:
    guide = None
    needs_host = False

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen: list[tuple[int, int]] = []

    def next(self, length: int, behind: int) -> int:
        return self.count

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        self.seen.append((num_drafted, num_accepted))


class Forces:
    def __init__(self, count: int) -> None:
        self.count = count

    def forced(self, most: int) -> list[int]:
        return [0] * min(most, self.count)


@pytest.mark.parametrize(
    ("drafts", "forced", "total"), [(0, 0, 0), (0, 3, 3), (2, 0, 2), (2, 1, 3), (3, 3, 4), (0, 9, 4)]
)
def test_forced_tokens_come_on_top(drafts: int, forced: int, total: int) -> None:
    schedule = BesideForced(Asked(drafts), Forces(forced), 4)  # type: ignore[arg-type]
    assert isinstance(schedule, Schedule)
    assert schedule.needs_host
    assert schedule.next(10, 2) == total


@pytest.mark.parametrize(
    ("outcome", "seen"), [((3, 3), [(1, 1)]), ((3, 2), [(1, 0)]), ((3, 1), []), ((2, 2), [(0, 0)]), ((1, 1), [])]
)
def test_only_what_the_draft_proposed_is_told(outcome: tuple[int, int], seen: list[tuple[int, int]]) -> None:
    inner = Asked(1)
    schedule = BesideForced(inner, Forces(2), 4)  # type: ignore[arg-type]
    schedule.next(10, 2)
    schedule.observe(*outcome)
    assert inner.seen == seen
