"""The schedules that add tokens to those of another: forced by a grammar, or predicted."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.runtime.drafting.rounds import RoundOutcome
from specexport.runtime.policy.schedule import Schedule, WithForcedTokens, WithPrediction
from support.rounds import Wants, ask, match, outcome, sequence, tell


def by_the_prediction(schedule: WithPrediction, accepted: int = 4) -> None:
    assert ask(schedule, 10, 2) == 4
    schedule.observe(outcome(4, accepted, "prediction"))


def by_the_model(schedule: WithPrediction) -> int:
    """A round that the prediction has nothing for, and whose draft stands."""
    ask(schedule, 10, 2)
    count = 0
    while count < 4 and schedule.go_on(count) and schedule.include(count, np.zeros((1, 4), np.float32)):
        count += 1
    tell(schedule, count, count)
    return count


def test_a_probe_is_kept_for_a_round_that_has_room_for_it() -> None:
    inner = Wants(0, 2, 0)
    schedule = WithPrediction(inner, 4)
    assert isinstance(schedule, Schedule)
    by_the_prediction(schedule)
    assert by_the_model(schedule) == 0
    for _ in range(3):
        by_the_prediction(schedule)
    assert by_the_model(schedule) == 2
    assert by_the_model(schedule) == 0
    assert inner.seen == [(0, 0), (2, 2), (0, 0)]


def test_an_answer_that_found_no_room_stands_for_the_next_round() -> None:
    """As where the draft's cache is filled before the first round, which then is the prediction's."""
    inner = Wants(2, 0)
    schedule = WithPrediction(inner, 4)
    ask(schedule, 10, 2)
    assert schedule.go_on(0)
    schedule.observe(outcome(4, 4, "prediction"))
    assert by_the_model(schedule) == 2
    assert inner.seen == [(2, 2)]


def test_it_hears_of_its_own_tokens() -> None:
    """Two of the model, and what the prediction had behind them."""
    inner = Wants(2)
    schedule = WithPrediction(inner, 4)
    ask(schedule, 10, 2)
    assert schedule.go_on(0)
    assert [schedule.include(index, np.zeros((1, 4), np.float32)) for index in range(3)] == [True, True, False]
    schedule.observe(RoundOutcome((0,) * 4, ("model", "model", "prediction", "prediction"), 3))
    assert inner.seen == [(2, 2)]


def test_lookups_count_against_what_is_allowed() -> None:
    schedule = WithPrediction(Wants(3), 4)
    ask(schedule, 10, 2)
    assert schedule.looked_up(match(5, 4), 1) == 2


@pytest.mark.parametrize("with_model", [True, False])
def test_lookups_alone_hear_of_rounds_that_they_have_nothing_for(with_model: bool) -> None:
    """Nothing asked the schedule then; of the prediction's rounds it hears nothing."""
    inner = Wants(4, 4, 3)
    schedule = WithPrediction(inner, 4, with_model=with_model)
    for _ in range(2):
        ask(schedule, 10, 2)
        tell(schedule, 0, 0)
    by_the_prediction(schedule)
    assert inner.seen == ([] if with_model else [(0, 0), (0, 0)])
    ask(schedule, 10, 2)
    assert schedule.looked_up(match(5, 4), 0) == (4 if with_model else 3)


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
    ("judged", "seen"), [((3, 3), [(1, 1)]), ((3, 2), [(1, 0)]), ((3, 1), []), ((2, 2), [(0, 0)]), ((2, 1), [])]
)
def test_only_what_the_draft_proposed_is_told(judged: tuple[int, int], seen: list[tuple[int, int]]) -> None:
    inner = Wants(1)
    schedule = WithForcedTokens(inner, Forces(2), 4, on_top=True)  # type: ignore[arg-type]
    ask(schedule, 10, 2)
    drafted, accepted = judged
    schedule.observe(RoundOutcome((0,) * drafted, ("grammar", "grammar", "model")[:drafted], accepted))
    assert inner.seen == seen
