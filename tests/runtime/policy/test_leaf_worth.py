"""What leaves are believed to be worth, and what their rows cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from specexport.runtime.drafting.leaves import Choices, JudgedLeaves
from specexport.runtime.policy.cost_model import CostPoint, Costs, MeasuredTime
from specexport.runtime.policy.leaf_worth import (
    BEST_SHARE,
    HOST_SECONDS,
    LEAST_GAIN,
    LEAST_OF_MEAN,
    RANKS,
    LeafBeliefs,
    LeafWorth,
)
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.policy.schedule import AdaptiveSchedule, RouteState
from specexport.runtime.sampling.distribution import Probabilities
from support.rounds import ask, outcome


def schedule(
    verify: tuple[float, ...], state: RouteState | None = None, draft: float = 0.1, tree: tuple[float, ...] = ()
) -> AdaptiveSchedule:
    """Chances of 0.8 and then 0.5. verify: seconds of a pass over 1, 2, ... rows; draft: of the draft's; tree: of
    wider passes.
    """

    def time(seconds: float) -> MeasuredTime:
        return MeasuredTime(seconds, seconds, seconds)

    rounds, host = tuple(time(seconds + draft * k) for k, seconds in enumerate(verify)), (time(0.0),) * len(verify)
    point = CostPoint(16, rounds, time(draft), tuple(map(time, verify)), host, tuple(map(time, tree)))
    costs = Costs(1, "bundle", "host", "onnxruntime", 0, "", 0.01, 0.0, (point,))
    entry = RoutePolicy("on", "model", 1, "adaptive", (0.8, 0.5), None)
    found = AdaptiveSchedule(entry, costs, None, state or RouteState(), len(verify) - 1)
    ask(found, 16, 2)
    return found


def choices(*found: tuple[int, int, float]) -> Choices:
    """(place, rank, share) of each."""
    places, ranks, shares = (np.array(column) for column in zip(*found, strict=True))
    return Choices(places, places + 7, ranks, 0.0 * shares, shares)


def for_rows(costs: Probabilities) -> Probabilities:
    """The part of `costs` that is for rows: without what leaves have to gain besides."""
    return costs - LEAST_GAIN * (np.arange(len(costs)) > 0)


def test_a_row_costs_what_its_place_does_and_beyond_what_was_measured_the_most() -> None:
    steps = schedule((1.0, 1.01, 1.02, 1.3, 1.32))
    rate = (1 + 0.8 + 0.4) / (1.02 + 0.2)  # the tokens a second of the best, k = 2
    least = LEAST_OF_MEAN * 0.31 / 3
    expected = rate * np.array([0.0, least, 0.29, 0.31, 0.31 + 0.28, 0.31 + 2 * 0.28])
    assert for_rows(steps.leaves.costs(2, 5)) == pytest.approx(expected)
    assert for_rows(steps.leaves.costs(5, 1)) == pytest.approx([0.0, rate * 0.28])
    wider = schedule((1.0, 1.01, 1.02, 1.3, 1.32), tree=(1.33, 1.6))
    expected = rate * np.array([0.0, LEAST_OF_MEAN * 0.59 / 5, 0.28, 0.28 + 0.28])
    assert for_rows(wider.leaves.costs(5, 3)) == pytest.approx(expected)


def test_no_row_is_free_where_the_measurement_found_none_dearer() -> None:
    """A busy host: widths 2 to 5 look equally fast, 6 to 8 do not."""
    noisy = schedule((1.0, 1.2, 1.2, 1.2, 1.2), tree=(1.2, 1.5, 1.8))
    expected = noisy.leaves._rate * LEAST_OF_MEAN * np.array([0.0, 0.1, 0.2])
    assert for_rows(noisy.leaves.costs(3, 2)) == pytest.approx(expected)


@pytest.mark.parametrize(("ending", "pays"), [(0.9, False), (1.1, True)])
def test_a_gain_below_the_error_of_the_costs_is_left_out(ending: float, pays: bool) -> None:
    """ending: the probability that the draft ends, in what makes a free row gain just enough at best."""
    free = LeafWorth(LeafBeliefs())
    free.begin([], [1.0 - ending * LEAST_GAIN / BEST_SHARE], 1.0, [1.0] * 5)
    assert free.costs(3, 2).tolist() == [0.0, LEAST_GAIN, LEAST_GAIN]
    assert free.could_pay() == pays


def test_leaves_of_several_positions_may_pay_together() -> None:
    """A good draft ends at any of its positions with less than what a single leaf would have to gain."""
    free = LeafWorth(LeafBeliefs())
    for chances, pays in (([0.92], False), ([0.92] * 4, True)):
        free.begin([], chances, 1.0, [1.0] * 5)
        assert free.could_pay() == pays


def test_the_step_to_two_rows_is_none_of_a_leafs() -> None:
    """A round with a draft has two rows without any leaf."""
    assert schedule((1.0, 1.3, 1.31, 1.32, 1.33), draft=0.01).leaves.could_pay()
    assert not schedule((1.0, 1.01, 1.31, 1.61, 1.91), draft=0.01).leaves.could_pay()


@pytest.mark.parametrize(("row", "pays"), [(0.01, True), (0.06, True), (0.15, False)])
def test_nobody_looks_where_no_leaf_can_pay(row: float, pays: bool) -> None:
    """The draft ends at its second place with 0.4, half of which a leaf there could give at best."""
    assert schedule(tuple(1.0 + row * index for index in range(5))).leaves.could_pay() == pays


def test_nobody_looks_where_rounds_are_as_short_as_the_look() -> None:
    times = [1.0, 1.01, 1.02, 1.03, 1.04]
    for scale, pays in ((1.0, True), (HOST_SECONDS, False)):
        found = schedule(tuple(scale * seconds for seconds in times), draft=0.1 * scale)
        assert found.leaves.could_pay() == pays


def test_a_leaf_is_worth_the_chance_that_the_draft_ends_there_and_goes_on_so() -> None:
    free = schedule((1.0,) * 5)
    found = free.leaves.values(choices((0, 0, 0.5), (1, 0, 0.5), (2, 0, 0.1)))
    assert found == pytest.approx([0.2 * 0.5, 0.8 * 0.5 * 0.5, 0.8 * 0.5 * 0.5 * 0.1])


def test_what_comes_true_more_often_than_the_draft_says_is_worth_more() -> None:
    state, two = RouteState(), choices((0, 0, 0.5), (0, 1, 0.5))
    one = schedule((1.0,) * 5, state)
    before = one.leaves.values(two)
    for turn in range(200):  # the second choice comes true twice as often as it says, the third never does
        one.leaves.learn(JudgedLeaves(two, 0 if turn % 5 == 0 else None))
    assert one.leaves.values(two)[0] == pytest.approx(2 * before[0], rel=0.1)
    assert one.leaves.values(two)[1] < 0.2 * before[1]
    later = schedule((1.0,) * 5, state)  # another request of the route
    assert later.leaves.values(two).tolist() == one.leaves.values(two).tolist()


def test_beliefs_are_bounded_and_follow_what_changes() -> None:
    beliefs, fourth, last = LeafBeliefs(), np.array([3]), np.array([RANKS, RANKS + 9])
    for _ in range(5000):
        beliefs.add(fourth, np.array([0.5]), 0)
    assert beliefs.factors(fourth) == pytest.approx(2.0, rel=0.05)
    for _ in range(600):
        beliefs.add(fourth, np.array([0.5]), None)
    assert beliefs.factors(fourth) < 0.2
    beliefs.add(last, np.array([0.5, 0.5]), 1)
    assert beliefs.factors(last).tolist() == [1.0, 1.0]
    assert LeafBeliefs().factors(fourth) == 1.0


def test_the_pace_is_not_told_that_rounds_with_leaves_are_slow() -> None:
    times = iter([0.0, 5.0])
    told: list[float] = []

    class Watched:
        extra = 1.0

        def clock(self) -> float:
            return next(times)

        def other(self, drafts: bool, price: float) -> bool:
            return False

        def observe(self, drafts: bool, seconds: float, plain: float, expected: float) -> None:
            told.append(expected)

    watched = RouteState(pace=Watched())  # type: ignore[arg-type]
    found = schedule((1.0, 1.1, 1.2, 1.3, 1.4), watched)
    found._had_draft = True
    found.observe(replace(outcome(2, 1), rows=3, num_leaves=2))
    assert told == [pytest.approx(1.2 + 2 * 0.1 + 0.1 + 0.1)]  # the round, and two rows
