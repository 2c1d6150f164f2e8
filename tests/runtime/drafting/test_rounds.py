"""Plans that the request's limit cuts, and outcomes that are seen in part."""

from __future__ import annotations

from specexport.runtime.drafting.rounds import RoundOutcome, RoundPlan

OUTCOME = RoundOutcome((5, 6, 7, 8), ("grammar", "model", "lookup", "lookup"), 3, (9,), "b")


def test_a_limit_cuts_forced_tokens_too() -> None:
    plan = RoundPlan(4, forced=(1, 2, 3))
    assert plan.limited(4) is plan
    assert plan.limited(2) == RoundPlan(2, forced=(1, 2))
    assert plan.limited(0) == RoundPlan(0)


def test_a_rounds_tokens_are_the_accepted_ones_and_what_follows() -> None:
    assert OUTCOME.tokens == [5, 6, 7, 9]


def test_a_part_is_as_if_nothing_else_had_been_drafted() -> None:
    assert OUTCOME.part(1, 3) == RoundOutcome((6, 7), ("model", "lookup"), 2, (9,), "b")
    assert OUTCOME.part(1, 2).of_model == (1, 1)
    assert OUTCOME.part(1, 4).of_model == (1, 1)
    assert OUTCOME.part(3, 4).num_accepted == 0
