"""Who drafts each round: by belief and by what caches lack, decided by rounds that are over, whatever the draft."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from specexport.runtime.drafting.rounds import RoundPlan, SequenceState, Source
from specexport.runtime.policy.controller import RouteState, Timing
from specexport.runtime.policy.cost_model import CostPoint, Costs, MeasuredTime
from specexport.runtime.policy.route_belief import ROUTING_VERSION, Belief, KnownDraft, KnownRoute, Routing
from specexport.runtime.policy.routed_schedule import HORIZON, PROBE_BUDGET, RAREST, Candidate, Purse, RoutedSchedule
from specexport.runtime.policy.schedule import Schedule
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, outcomes
from specexport.runtime.sampling.acceptance import VERIFY
from specexport.runtime.sampling.distribution import Distribution
from support.rounds import outcome

MOST = 2
PREFILL = 0.01


def costs(prefill: float = PREFILL) -> Costs:
    """Plain rounds take a second, a draft pass a tenth, a row of the verify pass a tenth."""

    def time(seconds: float) -> MeasuredTime:
        return MeasuredTime(seconds, seconds, seconds)

    rounds, verify = (
        tuple(time(1 + 0.2 * k) for k in range(MOST + 1)),
        tuple(time(1 + 0.1 * k) for k in range(MOST + 1)),
    )
    point = CostPoint(1, rounds, time(0.1), verify, (time(0.0),) * (MOST + 1))
    return Costs(1, "", "", "", 0, "", 0.0, prefill, (point,))


def routing(low: float = 0.3, high: float = 0.9, names: tuple[str, str] = ("model", "b")) -> Routing:
    """Each drafter is right on a route of its own. The speedups go with it."""
    first, second = names

    def known(good: str) -> KnownRoute:
        chances = {name: (high if name == good else low,) * MOST for name in names}
        return KnownRoute({name: KnownDraft(1.0 + found[0], found) for name, found in chances.items()}, {}, 0)

    return Routing(ROUTING_VERSION, "", "", 0, names, {"one": known(first), "two": known(second)})


class Asked:
    """A schedule, the caches that it looks at, and who drafts the newest round."""

    def __init__(self, schedule: RoutedSchedule) -> None:
        self.schedule, self.drafter = schedule, ""
        self.look_at(lambda name: 1)

    def look_at(self, lacks: Callable[[str], int]) -> None:
        self.lacks = lacks

    def next(self, length: int) -> int:
        plan = self.schedule.plan(SequenceState(length, self.lacks))
        self.drafter = str(plan.drafter)
        return plan.num_draft_tokens

    def observe(self, num_drafted: int, num_accepted: int, source: Source = "model") -> None:
        self.schedule.observe(outcome(num_drafted, num_accepted, source))


def routed(known: Routing | None = None, purse: Purse | None = None, prefill: float = PREFILL) -> Asked:
    known = known or routing()
    candidates = {name: Candidate(costs(prefill), None, RouteState()) for name in known.drafters}
    return Asked(RoutedSchedule(known, [], candidates, MOST, purse))


def caches(**lacking: int) -> Callable[[str], int]:
    return lambda name: lacking.get(name, 1)


def test_whoever_is_right_drafts_on() -> None:
    schedule = routed(purse=Purse())
    assert isinstance(schedule.schedule, Schedule)
    schedule.look_at(caches())
    assert schedule.next(20) > 0
    assert schedule.drafter == "model"  # the first of equals
    chosen = []
    for _ in range(12):
        count = schedule.next(20)
        chosen.append(schedule.drafter)
        schedule.observe(count, count if schedule.drafter == "b" else 0)
    assert chosen[0] == "model"
    assert chosen[-6:] == ["b"] * 6


def looks(schedule: Asked, rounds: int, right: str, first: int = 0) -> list[int]:
    """The rounds, from `first` on, in which it asked what the caches lack. right: who is, all others never."""
    asked: list[int] = []
    for number in range(first, first + rounds):

        def lacks(name: str, number: int = number) -> int:
            if name == "b":
                asked.append(number)
            return 1

        schedule.look_at(lacks)
        count = schedule.next(20)
        schedule.observe(count, count if schedule.drafter == right else 0)
    return sorted(set(asked))


def test_a_choice_that_stays_is_looked_at_less_and_one_that_changed_at_once() -> None:
    schedule = routed(purse=Purse())
    assert looks(schedule, 32, "model") == [0, 1, 3, 7, 7 + RAREST, 7 + 2 * RAREST, 7 + 3 * RAREST]
    assert schedule.drafter == "model"
    found = looks(schedule, 2 * RAREST, "b", 32)  # now it fails, which the next look sees
    assert schedule.drafter == "b"
    changed = 7 + 4 * RAREST
    assert found[:4] == [changed, changed + 1, changed + 3, changed + 7]


def test_rounds_between_two_looks_all_count() -> None:
    outcomes = [(2, 2), (2, 0), (2, 1), (1, 1), (2, 2), (1, 0), (2, 2), (2, 2)]
    schedule, belief = routed(purse=Purse()), Belief(routing(), [])
    schedule.look_at(caches(b=10**6))
    for drafted, accepted in outcomes[:7]:  # the looks are in rounds 0, 1, 3 and 7
        schedule.next(20)
        schedule.observe(drafted, accepted)
        belief.observe("model", drafted, accepted)
    assert schedule.schedule._belief.shares != pytest.approx(belief.shares)
    schedule.next(20)
    assert schedule.schedule._belief.shares == pytest.approx(belief.shares)


def test_a_schedule_is_told_what_its_cache_lacks_looking_or_not() -> None:
    schedule, told = routed(purse=Purse()), []
    schedule.look_at(caches(model=5, b=10**6))
    own = schedule.schedule.schedules["model"]
    for _ in range(4):
        own.plan = lambda state: told.append(state.missing_rows("model")) or RoundPlan(2)  # type: ignore[method-assign, func-returns-value]
        schedule.next(20)
        schedule.observe(2, 2)
    assert told == [5, 5, 5, 5]


def test_a_draft_that_must_catch_up_promises_less() -> None:
    for lacking, chosen in ((1, "b"), (40 * HORIZON, "model")):
        schedule = routed(purse=Purse())
        schedule.look_at(caches(b=lacking))
        schedule.next(20)
        schedule.observe(2, 0)
        schedule.next(21)
        assert schedule.drafter == chosen


def test_one_that_is_alone_knows_what_its_own_rounds_left_out() -> None:
    """Whatever the caches have from others: the same choices, and dearer the longer the other has not drafted."""
    chosen = []
    for lacking in (0, 10_000):
        schedule, found = routed(), []
        schedule.look_at(caches(b=lacking))
        for length in range(20, 40):
            count = schedule.next(length)
            found.append(schedule.drafter)
            schedule.observe(count, 0)
        chosen.append(found)
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 2
    short, long = routed(), routed(prefill=0.2)
    for schedule in (short, long):
        for length, accepted in ((100, 2), (103, 0)):
            assert schedule.next(length) == 2
            schedule.observe(2, accepted)
        schedule.next(104)
        schedule.observe(2, 0)
        schedule.next(105)
    assert (short.drafter, long.drafter) == ("b", "model")


@pytest.mark.parametrize("names", [("ngram", "b"), ("model", "b")])
def test_rounds_that_tell_nothing_pay_for_a_look_at_another_model(names: tuple[str, str]) -> None:
    """Plain rounds, since nothing pays, or lookups: what is spent is within the budget."""
    known = routing(0.01, 0.02, names)
    best = {name: replace(one, drafters=one.drafters | {names[0]: KnownDraft(2.0, (0.01,) * MOST)})
            for name, one in known.routes.items()}  # fmt: skip
    schedule = routed(replace(known, routes=best), Purse())
    schedule.look_at(caches(b=30))
    asked, rounds = 0, 2000
    for _ in range(rounds):
        count = schedule.next(20)
        asked += schedule.drafter == "b"
        schedule.observe(count if names[0] == "model" or schedule.drafter == "b" else 0, 0)
    price = 1.0 - 1.015 / 2.0 + 30 * PREFILL
    assert asked > 5
    assert asked * price <= PROBE_BUDGET * rounds + price


def test_the_pace_compares_no_round_with_another_drafters() -> None:
    """A round that follows one of its own kind is timed, but not across another drafter's."""
    for turns, timed in (("one", True), ("each", False)):
        clock, lacking = itertools.count(), {"model": 1, "b": 1}
        states = {name: RouteState(timing=Timing(lambda clock=clock: float(next(clock)))) for name in lacking}  # type: ignore[misc]
        candidates = {name: Candidate(costs(), None, state) for name, state in states.items()}
        schedule = Asked(RoutedSchedule(routing(), [], candidates, MOST, Purse()))
        schedule.look_at(lambda name, lacking=lacking: lacking[name])  # type: ignore[misc]
        for number in range(3):
            lacking["model"] = 10**6 if turns == "each" and number % 2 else 1
            lacking["b"] = 10**6 - lacking["model"]
            count = schedule.next(20)
            assert schedule.drafter == ("b" if lacking["b"] == 0 or lacking["model"] > 1 else "model")
            schedule.observe(count, count)
        assert any(state.timing._before for state in states.values() if state.timing) == timed


def test_what_was_looked_up_tells_nothing_of_a_model() -> None:
    schedule = routed(routing(0.1, 0.9, ("ngram", "b")), Purse())
    schedule.look_at(caches(b=10**6))
    for _ in range(9):
        schedule.next(20)
        assert schedule.drafter == "ngram"
        schedule.observe(2, 2, "lookup")
    assert schedule.schedule._belief.shares == {"one": 0.5, "two": 0.5}


# Losslessness: who drafts a round may depend on rounds before it, never on what the round itself draws.

Choose = Callable[[list[tuple[str, int, int]], dict[str, int]], str]


def two_rounds(verify: str, choose: Choose, target: Chain, drafts: dict[str, Chain]) -> dict[tuple[int, ...], float]:
    """The law of four tokens by two rounds of one draft token. choose: told of rounds that are over, as (drafter,
    drafted, accepted), and of the token that each draft would draw; returns who drafts.
    """
    found: dict[tuple[int, ...], float] = defaultdict(float)
    rng = np.random.default_rng(0)

    def follow(tokens: tuple[int, ...], past: list[tuple[str, int, int]], probability: float) -> None:
        if len(past) == 2:
            for tail in itertools.product(range(target.vocab), repeat=4 - len(tokens)):
                found[tokens + tail] += probability * target.probability(tokens + tail, given=len(tokens))
            return
        own = {name: Distribution(chain.after(tokens)) for name, chain in drafts.items()}
        for drawn in itertools.product(*(law.items() for law in own.values())):
            chance = float(np.prod([share for _, share in drawn]))
            asked = dict(zip(own, (token for token, _ in drawn), strict=True))
            name = choose(past, asked)

            def run(draft_tokens: tuple[int, ...], uniforms: list[float], name: str = name) -> tuple[int, int]:
                return VERIFY[verify](
                    lambda i: Distribution(target.after(tokens + draft_tokens[:i])),
                    [own[name]],
                    draft_tokens,
                    np.array(uniforms),
                )

            for count, token, share in outcomes(run, (asked[name],), target.vocab, rng):
                new = (*(asked[name],) * count, token)
                follow(tokens + new, [*past, (name, 1, count)], probability * chance * share)

    follow((), [], 1.0)
    return found


def error(found: dict[tuple[int, ...], float], target: Chain) -> float:
    every = itertools.product(range(target.vocab), repeat=4)
    return max(abs(found.get(tokens, 0.0) - target.probability(tokens)) for tokens in every)


TARGET, DRAFTS = Chain(3, 0), {"model": Chain(3, 100), "b": Chain(3, 200)}


@pytest.mark.parametrize("verify", VERIFY)
def test_who_drafts_leaves_the_output_alone(verify: str) -> None:
    seen = set()

    def choose(past: list[tuple[str, int, int]], drawn: dict[str, int]) -> str:
        schedule, length = routed(routing(0.05, 0.95)), 1
        for name, drafted, accepted in past:
            schedule.next(length)
            assert schedule.drafter == name
            schedule.observe(drafted, accepted)
            length += accepted + 1
        schedule.next(length)
        seen.add((*past, schedule.drafter))
        return schedule.drafter

    assert error(two_rounds(verify, choose, TARGET, DRAFTS), TARGET) <= PROBABILITY_TOLERANCE
    assert {drafter for *past, drafter in seen if past} == {"model", "b"}  # it does choose


@pytest.mark.parametrize("verify", VERIFY)
def test_the_enumeration_finds_a_choice_that_looks_ahead(verify: str) -> None:
    def choose(past: list[tuple[str, int, int]], drawn: dict[str, int]) -> str:
        return "b" if drawn["model"] == 1 else "model"

    assert error(two_rounds(verify, choose, TARGET, DRAFTS), TARGET) > 1000 * PROBABILITY_TOLERANCE
