"""Schedules where lookups draft: how far a match is taken, what is learnt from it, and what the model still drafts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from specexport.runtime.policy.confidence import adaptive_schedule
from specexport.runtime.policy.controller import FARTHEST, PLAIN, AdaptiveSchedule, RouteState
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.routes import RoutePolicy, Verdict
from specexport.runtime.policy.timing import Timing
from support.costs import costs_at, flat_point
from support.rounds import ask, match, sequence, tell

NO_LOGITS = np.zeros((1, 2), np.float32)


def costs(draft: float = 0.15, row: float = 0.1) -> Costs:
    return costs_at(flat_point(draft, row, most=8))


def schedule(
    drafter: str = "ngram",
    chances: tuple[float, ...] = (0.7,),
    state: RouteState | None = None,
    verdict: Verdict = "on",
    read: Callable[[int], float] | None = None,
    **prices: float,
) -> AdaptiveSchedule:
    entry = RoutePolicy(verdict, drafter, 1, "adaptive", chances, None)
    chance = None if read is None else lambda index, logits: read(index)
    found = adaptive_schedule(entry, costs(**prices), chance, state or RouteState(), 8)
    assert isinstance(found, AdaptiveSchedule)
    return found


def taken(one: AdaptiveSchedule, length: int, drafted: int = 0) -> int:
    """Of eight tokens that continue a match of `length`, in a new round."""
    count = ask(one, 16, 2)
    return one.looked_up(match(length, count - drafted), drafted) if count else 0


def hear(one: AdaptiveSchedule, num_drafted: int, num_accepted: int, found: int | None = None) -> None:
    """found: how many of the tokens, the last ones, were looked up; all of them by default."""
    tell(one, num_drafted, num_accepted, num_drafted if found is None else found)


def test_each_drafter_has_its_schedule() -> None:
    for drafter in ("ngram", "ngram+model"):
        one = schedule(drafter)
        assert one.plan(sequence(16)).draft_stop is one
        assert one.needs_host
    entry = RoutePolicy("on", "model", 1, "adaptive", (0.7,), None)
    assert type(adaptive_schedule(entry, costs(), None, RouteState(), 8)) is AdaptiveSchedule


def test_a_longer_match_is_taken_further() -> None:
    found = [taken(schedule(row=0.3), length) for length in (2, 3, 4, 8, 16)]
    assert found == sorted(found)
    assert found[0] < 3
    assert found[-1] == 8


def test_rows_that_cost_more_are_fewer() -> None:
    found = [taken(schedule(row=row), 4) for row in (0.01, 0.3, 0.5, 0.9)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 8
    assert found[-1] == 0


def by_the_rule(one: AdaptiveSchedule, count: int, length: int, drafted: int) -> int:
    """How many tokens of a match are worth most, sum by sum; none where the model would gain more."""
    table, expected, most = costs(**PRICES).at(16), one._expected, one._allowed
    model = [math.prod(expected[:k]) for k in range(9)]
    gains = [
        sum(model[drafted + 1 : k + 1]) - one._rate * (table.rounds[k] - table.rounds[drafted])
        for k in range(drafted, most + 1)
    ]
    least = max(0.0, gains[-1] if gains else 0.0)
    found = [0.0]
    for n in range(1, count + 1):
        goes_on = [math.prod((length + i - 1) / (length + i) for i in range(k)) for k in range(1, n + 1)]
        rows = one._rate * (table.verify[drafted + n] - table.verify[drafted])
        found.append(model[drafted] * sum(goes_on) - rows)
    return int(np.argmax(found)) if max(found) > least else 0


PRICES = {"draft": 0.1, "row": 0.13}


def test_every_match_is_taken_as_far_as_the_rule_says() -> None:
    """Two equal tokens go on with 1/2, three with 2/3; every token that stands makes the match longer."""
    seen = set()
    for length, chance, drafted in itertools.product((2, 3, 4, 8, 16), (0.1, 0.4, 0.7, 0.9), (0, 1, 2)):
        one = schedule("ngram+model", (chance,), **PRICES)
        one.plan(sequence(16))
        if drafted > one._allowed:
            continue
        one._saved.budget = 0.0  # nothing to explore with
        found = one.looked_up(match(length, 8 - drafted), drafted)
        assert found == by_the_rule(one, 8 - drafted, length, drafted)
        seen.add(found)
    assert {0, 8} < seen


def test_what_fails_is_taken_less_and_what_stands_further() -> None:
    one, other = schedule(row=0.3), schedule(row=0.3)
    before = taken(schedule(row=0.3), 4)
    for _ in range(20):
        hear(one, taken(one, 4), 0)
        count = taken(other, 4)
        hear(other, count, count)
    assert taken(one, 4) < before < taken(other, 4)


def test_tokens_behind_the_first_rejection_teach_nothing() -> None:
    shifts = []
    for number in (1, 6):
        state = RouteState()
        one = schedule(state=state, row=0.01)
        assert taken(one, 16) == 8
        hear(one, number, 0)
        shifts.append(state.lookups)
    assert shifts[0] == shifts[1] < 0


def test_what_fails_always_costs_what_probes_may_and_comes_back() -> None:
    one = schedule(row=0.3)
    for _ in range(100):
        hear(one, taken(one, 4), 0)
    drafted = []
    for _ in range(1000):
        drafted.append(taken(one, 4))
        hear(one, drafted[-1], 0)
    assert sum(map(bool, drafted)) > 0
    assert max(drafted) <= 1
    assert 0.3 * sum(drafted) <= PLAIN * 1000 + 0.3 * 1
    for _ in range(3000):
        count = taken(one, 4)
        hear(one, count, count)
    assert taken(one, 4) == 8


def test_the_route_remembers() -> None:
    state = RouteState()
    one = schedule(state=state, row=0.3)
    for _ in range(40):
        hear(one, taken(one, 8), 0)
    assert state.lookups < -0.1
    assert state.prior == 0.0


def test_beside_a_model_the_better_one_drafts() -> None:
    """A model that is nearly always right against a match of two, and one that is not against a match of sixteen."""
    sure, cheap = schedule("ngram+model", (0.97,), draft=0.05), schedule("ngram+model", (0.3,), draft=0.3)
    assert taken(sure, 2) == 0
    assert sure.go_on(0)
    assert taken(cheap, 16) == 8


def test_where_the_model_does_not_pay_lookups_draft_on() -> None:
    one = schedule("ngram+model", (0.05,), draft=0.6)
    assert ask(one, 16, 2) == 8
    assert not one.go_on(0)
    assert not one.include(0, NO_LOGITS)
    assert one.looked_up(match(16, 8), 0) == 8
    hear(one, 8, 8)
    assert one._state.prior == 0.0


def test_the_models_tokens_are_counted_without_what_is_looked_up_behind_them() -> None:
    state = RouteState()
    one = schedule("ngram+model", (0.9,), state, draft=0.1)
    assert ask(one, 16, 2) == 8
    assert one.looked_up(match(2, 8), 0) == 0  # the model is worth more
    assert one.go_on(0)
    assert one.include(0, NO_LOGITS)
    assert one.looked_up(match(16, 7), 1) == 7
    hear(one, 8, 3, 7)  # the model's, two that were looked up, and then not
    assert state.prior == pytest.approx(0.02 * (1 - 0.9))
    stood = sum(1 - chance for chance in (1 - 1 / 16, 1 - 1 / 17)) - (1 - 1 / 18)
    assert state.lookups == pytest.approx(0.02 * stood)


def test_what_was_not_legal_is_the_models_after_all() -> None:
    state = RouteState()
    one = schedule("ngram+model", (0.7,), state, draft=0.01)
    assert ask(one, 16, 2) == 8
    assert one.looked_up(match(64, 8), 0) > 0
    assert one.include(0, NO_LOGITS)  # nothing of it was legal
    tell(one, 1, 1)
    assert state.lookups == 0.0
    assert state.prior > 0.0


def test_the_model_drafts_as_much_beside_lookups_that_stand() -> None:
    """They come in stretches: where there is none, the output does not go on at their rate."""

    def by_model(one: AdaptiveSchedule) -> int:
        ask(one, 16, 2)
        count = 0
        while one.go_on(count) and one.include(count, NO_LOGITS):
            count += 1
        return count

    one = schedule("ngram+model", (0.7,), draft=0.1)
    before = by_model(one)
    for _ in range(12):
        ask(one, 16, 2)
        hear(one, one.looked_up(match(32, 8), 0), 8)
    assert 0 < before < 8
    assert by_model(one) == before


def test_confidence_is_read_where_somebody_can() -> None:
    one = schedule("ngram+model", (0.7,), read=lambda index: 0.9 if index < 2 else 0.01, draft=0.05)
    assert ask(one, 16, 2) == 8
    assert one.go_on(0)
    assert one.include(0, NO_LOGITS)
    assert one.go_on(1)
    assert one.include(1, NO_LOGITS)
    assert not one.include(2, NO_LOGITS)
    assert one.looked_up(match(32, 4), 2) == 4


def test_off_is_plain_until_probes_say_otherwise() -> None:
    for drafter in ("ngram", "ngram+model"):
        state, asked = RouteState(), []
        one = schedule(drafter, (0.9,), state, "off", row=0.3, draft=0.3)
        for _ in range(300):
            asked.append(taken(one, 4))
            hear(one, asked[-1], 0)
        assert not any(asked[:10])
        assert 0.3 * sum(asked) < 2 * PLAIN * 300 + 2
        for _ in range(3000):
            count = taken(one, 4)
            hear(one, count, count)
        assert taken(one, 4) == 8


def test_odds_are_bounded() -> None:
    state = RouteState(lookups=FARTHEST - 1e-6)
    one = schedule(state=state, row=0.01)
    for _ in range(200):
        hear(one, taken(one, 3), 8)
    assert state.lookups == FARTHEST


def test_a_plain_round_for_comparison_looks_nothing_up() -> None:
    ticks = count()
    state = RouteState(timing=Timing([1.0 + k for k in range(9)], lambda: float(next(ticks))))
    one = schedule("ngram+model", (0.9,), state, draft=0.1)
    plain = 0
    for _ in range(400):
        if not ask(one, 16, 2):
            plain += 1
            assert one.looked_up(match(64, 8), 0) == 0
            assert not one.go_on(0)
            tell(one, 0, 0)
            continue
        number = 0
        while one.go_on(number) and one.include(number, NO_LOGITS):
            number += 1
        tell(one, number, number)
    assert plain
