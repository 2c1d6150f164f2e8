"""Schedules: how many tokens are drafted, and that what decides it leaves the output the target's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from specexport.runtime.policy.confidence import ConfidentSchedule, adaptive_schedule
from specexport.runtime.policy.controller import PLAIN, AdaptiveSchedule, RouteState
from specexport.runtime.policy.cost_model import CostPoint, Costs, RoundCosts
from specexport.runtime.policy.routes import RoutePolicy
from specexport.runtime.policy.schedule import FixedSchedule
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, integrate
from specexport.runtime.proofs.tree_enumeration import FixedNoise, as_logits
from specexport.runtime.sampling.acceptance import VERIFY
from specexport.runtime.sampling.distribution import Distribution
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.runtime.sampling.rules import SamplingRule
from support.costs import costs_at, flat_point, time
from support.rounds import ask, sequence, tell

NO_LOGITS = np.zeros((1, 2), np.float32)


def costs(draft: float = 0.1, row: float = 0.05, host: float = 0.0, prefill: float = 0.0) -> Costs:
    return costs_at(flat_point(draft, row, host), draft_prefill=prefill)


def adaptive(
    chances: tuple[float, ...] = (0.8,),
    read: Callable[[int], float] | None = lambda index: 0.8,
    state: RouteState | None = None,
    drafter: str = "model",
    **changes: float,
) -> AdaptiveSchedule:
    """read: the chance that the draft's confidence tells, by index; None where nobody reads it."""
    entry = RoutePolicy("on", drafter, 1, "adaptive", chances, None)
    chance = None if read is None else lambda index, logits: read(index)
    return adaptive_schedule(entry, costs(**changes), chance, state or RouteState(), 4)


def drafted(schedule: AdaptiveSchedule) -> int:
    """Tokens of the next round, as the loop asks for them."""
    return drafted_of(schedule, ask(schedule, 16, 2))


def drafted_of(schedule: AdaptiveSchedule, most: int) -> int:
    count = 0
    while count < most and schedule.include(count, NO_LOGITS):
        count += 1
        if not schedule.go_on(count):
            break
    return count


def test_fixed_is_fixed() -> None:
    schedule = FixedSchedule(3)
    assert ask(schedule, 10, 0) == ask(schedule, 900, 5) == 3
    assert schedule.plan(sequence(10)).draft_stop is None


def test_the_whole_draft_where_it_is_sure_and_cheap() -> None:
    assert drafted(adaptive((0.95,), lambda index: 0.95)) == 4


def test_it_stops_at_the_token_that_is_not_worth_its_row() -> None:
    """Included is what pays for its row of the verify pass: a chance of 0.02 against 0.05 of a plain pass does not."""
    assert drafted(adaptive((0.8, 0.1), lambda index: (0.9, 0.02, 0.9, 0.9)[index], row=0.05)) == 1


def test_a_token_that_is_paid_for_already_may_be_less_probable_than_one_to_be_drafted() -> None:
    """Behind its pass only the row counts, 0.05 a token; in front of it the pass too, 0.35."""
    schedule = adaptive((0.8, 0.2), lambda index: (0.9, 0.2)[index], draft=0.3, row=0.05)
    assert ask(schedule, 16, 2) == 4
    assert schedule.include(0, NO_LOGITS)
    assert not schedule.go_on(1)  # expects 0.9 * 0.2, and pays for a pass and a row
    assert schedule.include(1, NO_LOGITS)  # were it drafted, it would be verified


def test_the_rate_that_is_reached_anyway_raises_the_bar() -> None:
    """With drafts that nearly always stand, time is worth more tokens, so a doubtful one is left out sooner."""
    doubtful = lambda index: (0.95, 0.16)[min(index, 1)]  # noqa: E731
    assert drafted(adaptive((0.3, 0.3), doubtful, row=0.1, draft=0.02)) >= 2
    assert drafted(adaptive((0.99, 0.3), doubtful, row=0.1, draft=0.02)) == 1


def test_where_nobody_reads_confidence_the_best_fixed_number_is_taken() -> None:
    assert ask(adaptive((0.9,), None), 16, 2) == 4
    assert ask(adaptive((0.9, 0.05), None, draft=0.3), 16, 2) == 1
    # 1 + 0.7 + 0.49 tokens in 1.5 s; a third would add 0.343 tokens in 0.25 s
    assert ask(adaptive((0.7,), None, draft=0.2), 16, 2) == 2
    assert adaptive((0.9,), None).plan(sequence(16)).draft_stop is None


def test_no_drafts_where_none_pays() -> None:
    assert ask(adaptive((0.05,), lambda index: 0.05), 16, 2) == 0
    assert ask(adaptive((0.9,), lambda index: 0.9, draft=1.5), 16, 2) == 0


def test_drafts_that_fail_switch_it_off_and_success_brings_it_back() -> None:
    state = RouteState()
    schedule = adaptive((0.8,), lambda index: 0.8, state)
    rounds = 0
    while ask(schedule, 16, 2) and rounds < 400:
        schedule.include(0, NO_LOGITS)
        tell(schedule, 1, 0)  # the draft is sure, and wrong
        rounds += 1
    # Its word is no longer trusted, so what it reads is low, and then so is what is expected.
    assert 3 < rounds < 400
    plain = 0
    while not (probe := ask(schedule, 16, 2)) and plain < 5000:
        tell(schedule, 0, 0)
        plain += 1
    assert probe
    recovered = 0
    for _ in range(4000):
        count = drafted(schedule)
        tell(schedule, count, count)
        recovered += count
    assert recovered > 1000


def test_refusals_switch_it_off_too() -> None:
    """Passes that only find that nothing is worth including are paid for: after some, the draft is no longer asked."""
    schedule = adaptive((0.8,), lambda index: 0.01)
    asked = 0
    for _ in range(300):
        if ask(schedule, 16, 2):
            asked += 1
            tell(schedule, int(schedule.include(0, NO_LOGITS)), 0)
        else:
            tell(schedule, 0, 0)
    assert 3 < asked < 80


def test_probes_cost_what_they_are_allowed_to() -> None:
    """Of the plain rounds' time: a probe's own passes, and the rows that the draft has to catch up with."""
    for behind in (2, 200):
        table = costs(prefill=0.01).at(16)
        schedule = adaptive((0.05,), lambda index: 0.0, prefill=0.01)
        spent, rounds, lacking = 0.0, 0, behind
        for _ in range(20_000):
            if ask(schedule, 16, lacking):
                spent += table.rounds[1] - table.rounds[0] + lacking * 0.01
                lacking = 0
                assert schedule.include(0, NO_LOGITS)
                assert not schedule.go_on(1)
                tell(schedule, 1, 0)
            else:
                tell(schedule, 0, 0)
                lacking = behind
            rounds += 1
        assert 0.5 * PLAIN < spent / rounds < 1.2 * PLAIN


def test_a_probe_that_was_right_is_followed_by_another() -> None:
    schedule = adaptive((0.05,), None)
    while not ask(schedule, 16, 2):
        tell(schedule, 0, 0)
    tell(schedule, 1, 0)
    assert ask(schedule, 16, 2)  # they come in pairs
    tell(schedule, 1, 1)
    assert ask(schedule, 16, 2)
    tell(schedule, 1, 0)
    assert not ask(schedule, 16, 2)


def test_the_route_remembers_less_than_the_request() -> None:
    state = RouteState()
    first = adaptive((0.8,), lambda index: 0.8, state)
    for _ in range(40):
        ask(first, 16, 2)
        first.include(0, NO_LOGITS)
        tell(first, 1, 0)
    assert state.calibration < -0.2
    assert ask(adaptive((0.8,), lambda index: 0.8, state), 16, 2)  # a new request starts nearly afresh


def test_costs_follow_the_length_of_the_sequence() -> None:
    table = costs_at(flat_point(0.1, 0.05), flat_point(5.0, 0.05, context=1000))
    entry = RoutePolicy("on", "model", 1, "adaptive", (0.9,), None)
    schedule = AdaptiveSchedule(entry, table, RouteState(), 4)
    assert ask(schedule, 16, 2) > 0
    assert ask(schedule, 1000, 2) == 0


class Choosy:
    """A guide that looks at the distribution of the token in question, and at the tokens before it."""

    def __init__(self, looks_ahead: Callable[[], int]) -> None:
        self.looks_ahead = looks_ahead

    def go_on(self, num_drafted: int) -> bool:
        return True

    def include(self, index: int, logits: Any) -> bool:
        return bool(index == 0 or logits[-1].max() > np.log(0.45)) and self.looks_ahead() != 1


@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_guide_looks_at_leaves_the_output_alone_unless_it_looks_ahead(verify: Any, ahead: bool) -> None:
    target, model, k = Chain(3, 0), Chain(3, 100), 2

    def play(uniforms: Sequence[float]) -> tuple[tuple[int, ...], int, int]:
        noise = FixedNoise(uniforms[:k]), FixedNoise(uniforms[k:])
        rule = SamplingRule(SamplingParameters(temperature=1.0, verification=verify), 3, noise=noise)

        def coming() -> int:
            first = uniforms[len(rule._drafted)] if ahead else 0.0
            return Distribution(model.after(tuple(rule._drafted))).draw(first) if ahead else -1

        draft_stop, drafted = Choosy(coming), list[int]()
        while len(drafted) < k and draft_stop.include(len(drafted), as_logits(model.after(tuple(drafted)))[None]):
            drafted.append(rule.propose(as_logits(model.after(tuple(drafted)))) or 0)
        rows = np.stack([as_logits(target.after(tuple(drafted[:i]))) for i in range(len(drafted) + 1)])
        return tuple(drafted), *rule.accept(rows, drafted)

    results = (((*drafted[:count], token), p) for (drafted, count, token), p in integrate(play, 2 * k + 1))
    error = Enumeration.of(results, target, k).error(target)
    assert error > 1000 * PROBABILITY_TOLERANCE if ahead else error <= PROBABILITY_TOLERANCE


def test_off_is_plain_until_probes_say_otherwise() -> None:
    """Whatever its chances promise: the verdict knows more, or somebody wrote it by hand."""
    entry = RoutePolicy("off", "model", 0, "adaptive", (0.9,), None)
    state = RouteState()
    asked = []
    for _ in range(20):  # requests
        schedule = ConfidentSchedule(entry, costs(), state, 4, lambda index, logits: 0.01)
        for _ in range(50):
            asked.append(ask(schedule, 16, 2))
            tell(schedule, int(bool(asked[-1]) and schedule.include(0, NO_LOGITS)), 0)
    assert asked[:10] == [0] * 10
    assert 0 < sum(map(bool, asked)) < 150  # of 1000, in pairs
    schedule = ConfidentSchedule(entry, costs(), RouteState(), 4, lambda index, logits: 0.95)
    taken = 0
    for _ in range(1000):
        count = drafted(schedule)
        tell(schedule, count, count)
        taken += count
    assert taken > 1000


def test_what_may_follow_can_be_worth_a_token_that_is_not() -> None:
    """If two tokens cost a pass as much as five, a doubtful one pays with sure ones behind it, and not alone."""
    verify = tuple(map(time, (1.0, 1.3, 1.3, 1.3, 1.3)))
    table = costs_at(CostPoint(16, verify, time(0.0), verify, (time(0.0),) * 5))
    for behind, included in ((0.99, True), (0.01, False)):
        entry = RoutePolicy("on", "model", 1, "adaptive", (0.6, behind), None)
        schedule = ConfidentSchedule(entry, table, RouteState(), 4, lambda index, logits: 0.3)
        assert ask(schedule, 16, 2) == 4
        assert schedule.include(0, NO_LOGITS) is included


def test_the_route_remembers_how_sure_drafts_were() -> None:
    state = RouteState()
    for _ in range(20):
        schedule = adaptive((0.8,), lambda index: 0.01, state)
        ask(schedule, 16, 2)
        schedule.include(0, NO_LOGITS)
    assert state.prior < -0.2


def test_tokens_behind_the_first_rejection_teach_nothing() -> None:
    one, other = RouteState(), RouteState()
    for state, count in ((one, 1), (other, 4)):
        schedule = adaptive((0.95,), lambda index: 0.95, state)
        ask(schedule, 16, 2)
        for index in range(count):
            assert schedule.include(index, NO_LOGITS)
        tell(schedule, count, 0)
    assert one == other


def by_the_rule(table: RoundCosts, expected: list[float], read: list[float], most: int) -> int:
    """Draft tokens of a round whose confidence reads `read`, by the rule as the module states it, sum by sum."""
    rates = [
        (1 + sum(math.prod(expected[:i]) for i in range(1, k + 1))) / table.rounds[k]
        for k in range(most + 1)  # k = 0 is plain
    ]
    rate = max(rates)
    if rate == rates[0]:
        return 0

    def worth(of: list[float], drafted: int, m: int, passes: int) -> float:
        gain = sum(math.prod(of[:i]) for i in range(drafted + 1, m + 1))
        return gain - rate * (passes * table.draft + table.verify[m] - table.verify[drafted])

    for j in range(most):
        of = read[: j + 1] + expected[j + 1 :]
        if all(worth(of, j, m, m - j - 1) <= 0 for m in range(j + 1, most + 1)):
            return j  # its pass has run; its row and what may follow are not worth their time
        if j + 1 == most or all(worth(of, j + 1, m, m - j - 1) <= 0 for m in range(j + 2, most + 1)):
            return j + 1
    return most


def test_every_decision_is_the_rules() -> None:
    """Whatever is skipped on the way to a decision, it is that of the sums."""
    random, seen = np.random.default_rng(7), set()
    for _ in range(400):
        expected, read = random.uniform(0.05, 0.98, (2, 4)).tolist()
        draft, row, host = random.uniform(0, 0.5), random.uniform(0, 0.3), random.uniform(0, 0.3)
        table = costs(draft, row, host).at(16)
        schedule = adaptive(tuple(expected), lambda index, read=read: read[index], draft=draft, row=row, host=host)
        found = drafted(schedule) if ask(schedule, 16, 2) else 0
        assert found == by_the_rule(table, expected, read, 4)
        seen.add(found)
    assert seen == {0, 1, 2, 3, 4}
