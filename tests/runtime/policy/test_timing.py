"""What rounds take against what costs say; all by a clock that the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from specexport.runtime.policy.controller import DRAFTING, MAX_EXTRA, START, AdaptiveSchedule, RouteState, Timing
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import POLICY_VERSION, Policy, RoutePolicy
from support.costs import costs_at, flat_point
from support.rounds import ask, outcome, tell

STEADY = lambda place: 1.0  # noqa: E731


def costs(draft: float, row: float = 0.1) -> Costs:
    return costs_at(flat_point(draft, row))


@dataclass
class Host:
    """Rounds take what `true` costs say, times `slower` of the round's number."""

    true: Costs
    slower: Callable[[int], float] = STEADY
    now: float = 0.0
    drafted: list[int] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def run(self, schedule: AdaptiveSchedule, rounds: int, accepts: bool = True) -> None:
        """accepts: whether a draft stands as a whole, or not at all."""
        table = self.true.at(16)
        for _ in range(rounds):
            k = ask(schedule, 16, 1)
            self.now += table.rounds[k] * self.slower(len(self.drafted))
            tell(schedule, k, k if accepts else 0)
            self.drafted.append(k)
            self.now += 50.0  # whoever reads the stream takes his time


def schedule(believed: Costs, pace: Timing | None, chances: tuple[float, ...] = (0.8,)) -> AdaptiveSchedule:
    entry = RoutePolicy("on", "model", 1, "adaptive", chances, None)
    return AdaptiveSchedule(entry, believed, RouteState(timing=pace), 4)


def always(k: int, pace: Timing, host: Host, rounds: int) -> None:
    """Rounds of k draft tokens, but for two of eight, which explore."""
    table, believed, before = host.true.at(16), costs(0.2).at(16), -1
    for place in range(rounds):
        other = place % 8 > 5
        number = (0 if other else k) if k else (2 if other else 0)
        if before == (number > 0):
            seconds = table.rounds[number] * host.slower(place)
            pace.observe(number > 0, other, seconds, believed.plain, believed.rounds[number])
        before = number > 0


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("slower", [STEADY, lambda place: 1.0 + place / 100], ids=["steady", "slower and slower"])
def test_the_extra_time_of_drafts_is_found_whatever_slows_the_host(
    k: int, factor: float, slower: Callable[[int], float]
) -> None:
    pace = Timing()
    always(k, pace, Host(costs(0.2 * factor, 0.1 * factor), slower), 600)
    assert pace.extra == pytest.approx(factor, rel=0.25)


def test_one_comparison_is_not_believed_alone() -> None:
    pace = Timing()
    always(2, pace, Host(costs(0.4, 0.2)), 9)
    assert 1.0 < pace.extra < 1.5


def test_a_single_disturbance_is_not_believed() -> None:
    pace = Timing()
    always(2, pace, Host(costs(0.2), lambda place: 20.0 if place % 29 == 7 else 1.0), 600)
    assert pace.extra == pytest.approx(1.0, rel=0.1)


def test_the_factor_is_bounded() -> None:
    pace = Timing()
    always(2, pace, Host(costs(90.0)), 600)
    assert pace.extra == MAX_EXTRA


def test_costs_that_are_too_high_are_found_out() -> None:
    """A draft believed to take half of the target's time, which takes a tenth of it."""
    believed, host = costs(0.5, 0.2), Host(costs(0.1, 0.1))
    host.run(schedule(believed, None, (0.4,)), 50)
    assert not any(host.drafted)
    host = Host(costs(0.1, 0.1))
    host.run(schedule(believed, Timing(host), (0.4,)), 300)
    assert sum(k == 4 for k in host.drafted[-50:]) > 45


def test_costs_that_are_too_low_are_found_out() -> None:
    """Not even a draft that always stands would pay."""
    believed, host = costs(0.2, 0.1), Host(costs(0.8, 0.5))
    host.run(schedule(believed, Timing(host), (0.6,)), 600)
    assert sum(k > 0 for k in host.drafted[-100:]) < 10
    assert sum(k > 0 for k in host.drafted[:10]) > 5


def test_comparisons_cost_what_they_are_allowed_to() -> None:
    """The draft is right, and so are the costs: plain rounds in between are all that the pace takes."""
    host = Host(costs(0.1))
    paced = schedule(costs(0.1), Timing(host))
    host.run(paced, 2000)
    plain = host.drafted.count(0)
    tokens, seconds = sum(host.drafted) + 2000, host.now - 50 * 2000
    lost = seconds - tokens * host.true.at(16).rounds[4] / 5
    assert plain >= 6
    assert plain % 2 == 0
    assert lost <= START + DRAFTING * 2000 + 2


def test_costly_drafts_are_compared_seldom() -> None:
    """Twenty plain rounds for a draft that never stands: it takes long to save for two of them."""
    host = Host(costs(20.0))
    host.run(schedule(costs(20.0), Timing(host), (0.1,)), 600, accepts=False)
    assert sum(k > 0 for k in host.drafted) == 0


@pytest.mark.parametrize("draft", [1.5, 0.9])
def test_a_draft_that_always_stands_and_still_does_not_pay_is_not_asked_again_at_once(draft: float) -> None:
    host = Host(costs(draft, 0.6))
    host.run(schedule(costs(draft, 0.6), None, (0.1,)), 2000)
    assert sum(k > 0 for k in host.drafted) < 40


def test_the_first_round_of_a_request_is_not_timed() -> None:
    """It may have to catch up on the prompt."""
    host = Host(costs(0.2), lambda place: 100.0 if place % 10 == 0 else 1.0)
    pace = Timing(host)
    for _ in range(60):
        host.run(schedule(costs(0.2), pace), 10)
    assert pace.extra == pytest.approx(1.0, rel=0.01)


def test_rounds_with_candidates_are_not_timed() -> None:
    """Nobody knows what their rows take; rounds without one count as before."""
    for candidates, known in ((3, False), (0, True)):
        host, pace = Host(costs(0.1), slower=lambda place: 1.0), Timing()
        pace.clock = host
        following = schedule(costs(0.1), pace)
        table = host.true.at(16)
        for _ in range(200):
            k = ask(following, 16, 1)
            host.now += table.rounds[k] + (0.5 * candidates if k else 0.0)
            following.observe(replace(outcome(k, k), num_candidates=candidates if k else 0))
        assert pace.extra == pytest.approx(1.0, abs=0.01)
        assert bool(pace._overhead_samples) == known


def test_rounds_that_were_looked_up_are_not_timed() -> None:
    """They are no plain ones, whatever they take."""
    host, pace = Host(costs(0.1), slower=lambda place: 1.0), Timing()
    pace.clock = host
    following = schedule(costs(0.1), pace)
    observed: list[bool] = []
    pace.observe = lambda *given: observed.append(given[0])  # type: ignore[method-assign]
    for _ in range(50):
        k = ask(following, 16, 1)
        host.now += host.true.at(16).rounds[k]
        following.observe(outcome(2, 2, "lookup"))
    assert observed == []


class StoppedError(Exception):
    pass


def stopped() -> float:
    raise StoppedError


def decisions() -> Decisions:
    entry = RoutePolicy("on", "model", 2, "adaptive", (0.9,), None)
    policy = Policy(POLICY_VERSION, "bundle", "onnxruntime", "", 0.0, 0.9, entry, {"code": entry, "prose": entry})
    return Decisions(policy, {"model": costs(0.1)}, first_draft="model", clock=stopped)


def test_no_clock_decides_for_a_seed_or_a_grammar() -> None:
    given = decisions()
    for changes in ({"seeded": True}, {"constrained": True}, {"seeded": True, "constrained": True}):
        _, one = given.schedule("code", 4, **changes)
        for _ in range(20):
            tell(one, ask(one, 16, 1), 0)
    with pytest.raises(StoppedError):
        ask(given.schedule("code", 4)[1], 16, 1)
    given.policy = None
    ask(given.uncalibrated("model", 4, seeded=True), 16, 1)
    ask(given.uncalibrated("model", 4, seeded=False, constrained=True), 16, 1)
    with pytest.raises(StoppedError):
        ask(given.uncalibrated("model", 4, seeded=False), 16, 1)


@pytest.mark.parametrize(("drafter", "asked"), [("model", True), ("ngram+model", True), ("ngram", False)])
def test_drafts_of_a_model_are_timed_also_beside_lookups(drafter: str, asked: bool) -> None:
    given = decisions()
    assert given.policy is not None
    given.policy = replace(given.policy, default=replace(given.policy.default, drafter=drafter))
    _, one = given.schedule(None, 4)
    if asked:
        with pytest.raises(StoppedError):
            ask(one, 16, 1)
    else:
        ask(one, 16, 1)


@pytest.mark.parametrize("constrained", [False, True])
def test_requests_with_a_seed_learn_from_nobody_and_teach_nobody(constrained: bool) -> None:
    """Those of one seed least of all: what the first accepted tells of the noise that judges the second."""
    given = decisions()
    given.clock = lambda: math.nan
    first = given.schedule("code", 4, constrained, seeded=True)[1]
    before = [ask(first, 16, 1) for _ in range(3)]
    for _ in range(20):
        tell(first, ask(first, 16, 1), 0)
    second = given.schedule("code", 4, constrained, seeded=True)[1]
    assert [ask(second, 16, 1) for _ in range(3)] == before
    assert not given.states


def test_what_others_left_in_the_drafts_cache_decides_nothing_for_a_seed() -> None:
    def drafted(behind: int, seeded: bool) -> list[int]:
        given = decisions()
        given.clock = count(1.0).__next__
        assert given.costs is not None
        given.costs["model"] = replace(costs(0.1), draft_prefill=1e-3)
        one, found = given.schedule("code", 4, seeded=seeded)[1], []
        for _ in range(400):
            found.append(ask(one, 16, behind))
            tell(one, found[-1], 0)  # a draft that is never right is soon asked for probes alone
        return found

    assert drafted(1, seeded=True) == drafted(4000, seeded=True)
    assert drafted(1, seeded=False) != drafted(4000, seeded=False)


def test_all_routes_share_what_rounds_take() -> None:
    given = decisions()
    given.clock = lambda: math.nan
    for route in ("code", "prose", None):
        given.schedule(route, 4)
    paces = {id(state.timing) for state in given.states.values()}
    assert len(given.states) == 3
    assert len(paces) == 1
