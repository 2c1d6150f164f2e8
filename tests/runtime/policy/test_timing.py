"""What rounds take against what costs say; all by a clock that the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from specexport.runtime.policy.controller import DRAFTING, UNCERTAIN, AdaptiveSchedule, RouteState
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.decisions import Decisions
from specexport.runtime.policy.routes import POLICY_VERSION, Policy, RoutePolicy
from specexport.runtime.policy.timing import START, Timing
from support.costs import costs_at, flat_point, time
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


def timing_of(believed: Costs, clock: Callable[[], float] = lambda: 0.0) -> Timing:
    return Timing(believed.at(16).rounds, clock)


def schedule(believed: Costs, pace: Timing | None, chances: tuple[float, ...] = (0.8,)) -> AdaptiveSchedule:
    entry = RoutePolicy("on", "model", 1, "adaptive", chances, None)
    return AdaptiveSchedule(entry, believed, RouteState(timing=pace), 4)


def alternating(pace: Timing, host: Host, rounds: int) -> None:
    """Mostly rounds of two draft tokens, and some of others."""
    table, believed = host.true.at(16), costs(0.2).at(16)
    for place in range(rounds):
        number = {3: 0, 6: 4}.get(place % 8, 2)
        pace.observe(number, table.rounds[number] * host.slower(place), believed.rounds[number])


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "slower",
    [STEADY, lambda place: 1.0 + place / 100, lambda place: 3.0 if place % 100 > 50 else 1.0],
    ids=["steady", "slower and slower", "busy at times"],
)
def test_what_costs_are_off_by_is_found_whatever_slows_the_host(factor: float, slower: Callable[[int], float]) -> None:
    pace, true, believed = timing_of(costs(0.2)), costs(0.2 * factor, 0.1 * factor), costs(0.2).at(16)
    alternating(pace, Host(true, slower), 600)
    for k in (0, 2, 4):
        assert pace.factors[k] == pytest.approx(true.at(16).rounds[k] / believed.rounds[k], rel=0.15)


def test_one_comparison_is_not_believed_alone() -> None:
    pace = timing_of(costs(0.2))
    pace.observe(0, 1.0, 1.0)
    pace.observe(2, 2.0, 1.0)
    assert 1.1 < pace.factors[2] < 1.9


def test_a_single_disturbance_is_not_believed() -> None:
    pace = timing_of(costs(0.2))
    alternating(pace, Host(costs(0.2), lambda place: 20.0 if place % 29 == 7 else 1.0), 600)
    assert pace.factors == pytest.approx([1.0] * 5, rel=0.1)


def test_numbers_that_were_not_tried_are_believed_to_be_off_alike_but_less() -> None:
    pace = timing_of(costs(0.2))
    for _ in range(50):
        pace.observe(0, 1.0, 1.0)
        pace.observe(2, 2.0, 1.0)
    assert pace.factors[2] == pytest.approx(2.0, rel=0.05)
    assert 1.2 < pace.factors[1] < 1.8 < pace.factors[3] < pace.factors[4] < 3.0
    assert pace.uncertainty(2) < pace.uncertainty(1)


def test_a_host_that_slowed_down_between_requests_tells_little_of_costs() -> None:
    """Less than one that slows down in the middle of a request."""
    found = []
    for pauses in (True, False):
        pace = timing_of(costs(0.2))
        for number in (0, 2) * 3:
            pace.observe(number, 1.0, 1.0)
        before = pace.factors[2]
        if pauses:
            pace.pause()
        pace.observe(2, 2.0, 1.0)
        found.append(pace.factors[2] / before)
    assert 1.0 < found[0] < 1.02 < found[1]


def test_a_clock_that_did_not_move_tells_nothing() -> None:
    pace = timing_of(costs(0.2))
    before = pace.factors
    for seconds in (0.0, math.nan):
        pace.observe(2, seconds, 1.0)
    assert pace.factors == before


def test_costs_that_are_too_high_are_found_out() -> None:
    """A draft believed to take half of the target's time, which takes a tenth of it."""
    believed, host = costs(0.5, 0.2), Host(costs(0.1, 0.1))
    host.run(schedule(believed, None, (0.4,)), 50)
    assert not any(host.drafted)
    host = Host(costs(0.1, 0.1))
    host.run(schedule(believed, timing_of(believed, host), (0.4,)), 300)
    assert sum(k == 4 for k in host.drafted[-50:]) > 45


def test_costs_that_are_too_low_are_found_out() -> None:
    """Not even a draft that always stands would pay."""
    believed, host = costs(0.2, 0.1), Host(costs(0.8, 0.5))
    host.run(schedule(believed, timing_of(believed, host), (0.6,)), 600)
    assert sum(k > 0 for k in host.drafted[-100:]) < 10
    assert sum(k > 0 for k in host.drafted[:10]) > 5


def test_comparisons_cost_what_they_are_allowed_to() -> None:
    """The draft is right, and so are the costs: plain rounds in between are all that the pace takes, and few."""
    host = Host(costs(0.1))
    paced = schedule(costs(0.1), timing_of(costs(0.1), host))
    host.run(paced, 2000)
    plain = host.drafted.count(0)
    tokens, seconds = sum(host.drafted) + 2000, host.now - 50 * 2000
    lost = seconds - tokens * host.true.at(16).rounds[4] / 5
    assert plain in (4, 6, 8)
    assert lost <= START + DRAFTING * 2000 + 2


def test_costly_drafts_are_compared_seldom() -> None:
    """Twenty plain rounds for a draft that never stands: it takes long to save for two of them."""
    host = Host(costs(20.0))
    host.run(schedule(costs(20.0), timing_of(costs(20.0), host), (0.1,)), 600, accepts=False)
    assert sum(k > 0 for k in host.drafted) == 0


@pytest.mark.parametrize("draft", [1.5, 0.9])
def test_a_draft_that_always_stands_and_still_does_not_pay_is_not_asked_again_at_once(draft: float) -> None:
    host = Host(costs(draft, 0.6))
    host.run(schedule(costs(draft, 0.6), None, (0.1,)), 2000)
    assert sum(k > 0 for k in host.drafted) < 40


def test_the_first_round_of_a_request_is_not_timed() -> None:
    """It may have to catch up on the prompt."""
    host = Host(costs(0.2), lambda place: 100.0 if place % 10 == 0 else 1.0)
    pace = timing_of(costs(0.2), host)
    for _ in range(60):
        host.run(schedule(costs(0.2), pace), 10)
    assert pace.factors == pytest.approx([1.0] * 5, rel=0.1)


def test_rounds_with_candidates_are_not_timed() -> None:
    """Nobody knows what their rows take; rounds without one count."""
    for candidates in (3, 0):
        host, pace = Host(costs(0.1)), timing_of(costs(0.2))
        pace.clock = host
        following = schedule(costs(0.1), pace)
        for _ in range(200):
            k = ask(following, 16, 1)
            host.now += host.true.at(16).rounds[k] + (0.5 * candidates if k else 0.0)
            following.observe(replace(outcome(k, k), num_candidates=candidates if k else 0))
        assert pace.factors == pytest.approx([1.0] * 5, abs=0.15)
        assert (pace.uncertainty(4) < UNCERTAIN) == (not candidates)


def test_rounds_that_were_looked_up_are_timed_as_such() -> None:
    """No pass of the draft is in their time, also where the first one of a round takes longer than others."""
    (even,) = costs(0.5).points
    dear = replace(even, rounds=(even.rounds[0], *(time(whole.median + 0.4) for whole in even.rounds[1:])))
    known = replace(costs(0.5), points=(dear,))
    host, pace = Host(known), timing_of(costs(0.2))
    pace.clock = host
    following = schedule(known, pace)
    for place in range(60):
        ask(following, 16, 1)
        looked_up = 2 * (place % 2)
        host.now += host.true.at(16).looked_up(looked_up)
        following.observe(outcome(looked_up, looked_up, "lookup"))
    assert pace.factors[2] == pytest.approx(1.0, rel=0.05)
    assert pace.uncertainty(2) < UNCERTAIN


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
        given, host = decisions(), Host(costs(0.1))
        given.clock = host
        assert given.costs is not None
        given.costs["model"] = replace(costs(0.1), draft_prefill=1e-3)
        one, found = given.schedule("code", 4, seeded=seeded)[1], []
        for _ in range(400):
            found.append(ask(one, 16, behind))
            host.now += host.true.at(16).rounds[found[-1]]
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
