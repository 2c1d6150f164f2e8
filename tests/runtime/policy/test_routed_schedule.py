"""Who drafts each round: by posterior and by what caches lack, decided by rounds that are over, whatever the draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from specexport.runtime.drafting.rounds import RoundPlan, SequenceState, Source
from specexport.runtime.policy.controller import RouteState
from specexport.runtime.policy.cost_model import Costs
from specexport.runtime.policy.routed_schedule import HORIZON, MAX_GAP, Candidate, RoutedSchedule
from specexport.runtime.policy.routing import ROUTING_VERSION, KnownDraft, KnownRoute, RoutePosterior, Routing
from specexport.runtime.policy.schedule import Schedule
from specexport.runtime.proofs.enumeration import PROBABILITY_TOLERANCE, Chain, Enumeration, integrate
from specexport.runtime.sampling.acceptance import VERIFY
from specexport.runtime.sampling.distribution import Distribution
from support.costs import costs_at, flat_point
from support.rounds import outcome

MOST = 2
PREFILL = 0.01


def costs(prefill: float = PREFILL) -> Costs:
    return costs_at(flat_point(0.1, 0.1, most=MOST), draft_prefill=prefill)


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


def routed(known: Routing | None = None, alone: bool = False, prefill: float = PREFILL) -> Asked:
    known = known or routing()
    candidates = {name: Candidate(costs(prefill), None, RouteState(alone=alone)) for name in known.drafters}
    return Asked(RoutedSchedule(known, [], candidates, MOST))


def caches(**lacking: int) -> Callable[[str], int]:
    return lambda name: lacking.get(name, 1)


def test_whoever_is_right_drafts_on() -> None:
    schedule = routed()
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
    schedule = routed()
    assert looks(schedule, 32, "model") == [0, 1, 3, 7, 7 + MAX_GAP, 7 + 2 * MAX_GAP, 7 + 3 * MAX_GAP]
    assert schedule.drafter == "model"
    found = looks(schedule, 2 * MAX_GAP, "b", 32)  # now it fails, which the next look sees
    assert schedule.drafter == "b"
    changed = 7 + 4 * MAX_GAP
    assert found[:4] == [changed, changed + 1, changed + 3, changed + 7]


def test_rounds_between_two_looks_all_count() -> None:
    outcomes = [(2, 2), (2, 0), (2, 1), (1, 1), (2, 2), (1, 0), (2, 2), (2, 2)]
    schedule, posterior = routed(), RoutePosterior(routing(), [])
    schedule.look_at(caches(b=10**6))
    for drafted, accepted in outcomes[:7]:  # the looks are in rounds 0, 1, 3 and 7
        schedule.next(20)
        schedule.observe(drafted, accepted)
        posterior.observe("model", drafted, accepted)
    assert schedule.schedule._posterior.shares != pytest.approx(posterior.shares)
    schedule.next(20)
    assert schedule.schedule._posterior.shares == pytest.approx(posterior.shares)


def test_a_schedule_is_told_what_its_cache_lacks_looking_or_not() -> None:
    schedule, told = routed(), []
    schedule.look_at(caches(model=5, b=10**6))
    own = schedule.schedule.schedules["model"]
    for _ in range(4):
        own.plan = lambda state: told.append(state.missing_rows("model")) or RoundPlan(2)  # type: ignore[method-assign, func-returns-value]
        schedule.next(20)
        schedule.observe(2, 2)
    assert told == [5, 5, 5, 5]


def test_a_draft_that_must_catch_up_promises_less() -> None:
    for lacking, chosen in ((1, "b"), (40 * HORIZON, "model")):
        schedule = routed()
        schedule.look_at(caches(b=lacking))
        schedule.next(20)
        schedule.observe(2, 0)
        schedule.next(21)
        assert schedule.drafter == chosen


def test_one_that_is_alone_knows_what_its_own_rounds_left_out() -> None:
    """Whatever the caches have from others: the same choices, and dearer the longer the other has not drafted."""
    chosen = []
    for lacking in (0, 10_000):
        schedule, found = routed(alone=True), []
        schedule.look_at(caches(b=lacking))
        for length in range(20, 40):
            count = schedule.next(length)
            found.append(schedule.drafter)
            schedule.observe(count, 0)
        chosen.append(found)
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 2
    short, long = routed(alone=True), routed(alone=True, prefill=0.2)
    for schedule in (short, long):
        for length, accepted in ((100, 2), (103, 0)):
            assert schedule.next(length) == 2
            schedule.observe(2, accepted)
        schedule.next(104)
        schedule.observe(2, 0)
        schedule.next(105)
    assert (short.drafter, long.drafter) == ("b", "model")


def test_what_was_looked_up_tells_nothing_of_a_model() -> None:
    schedule = routed(routing(0.1, 0.9, ("ngram", "b")))
    schedule.look_at(caches(b=10**6))
    for _ in range(9):
        schedule.next(20)
        assert schedule.drafter == "ngram"
        schedule.observe(2, 2, "lookup")
    assert schedule.schedule._posterior.shares == [0.5, 0.5]


# Losslessness: who drafts a round may depend on rounds before it, never on what the round itself draws.

Tokens = tuple[int, ...]
Past = list[tuple[str, int]]  # rounds that are over: who drafted, and how many were accepted
TARGET, DRAFTS = Chain(3, 0), {"model": Chain(3, 100), "b": Chain(3, 200)}


def error(rule: str, choose: Callable[[Past, int], str]) -> float:
    """Of four tokens by two rounds of one draft token. choose: told of the past and of the token that `model` would
    draft; returns who drafts.
    """

    @cache
    def verified(tokens: Tokens, name: str, drafted: int) -> list[tuple[tuple[int, int], float]]:
        def run(uniforms: object) -> tuple[int, int]:
            targets = [Distribution(TARGET.after(context)) for context in (tokens, (*tokens, drafted))]
            draft = Distribution(DRAFTS[name].after(tokens))
            return VERIFY[rule](targets.__getitem__, [draft], (drafted,), np.array(uniforms))

        return list(integrate(run, 2))

    def follow(tokens: Tokens, past: Past, probability: float) -> Iterator[tuple[Tokens, float]]:
        if len(past) == 2:
            yield tokens, probability
            return
        laws = [chain.after(tokens) for chain in DRAFTS.values()]
        for drawn in itertools.product(range(3), repeat=2):
            chance = float(np.prod([law[token] for law, token in zip(laws, drawn, strict=True)]))
            if chance == 0.0:
                continue
            name = choose(past, drawn[0])
            drafted = drawn[list(DRAFTS).index(name)]
            for (count, token), share in verified(tokens, name, drafted):
                new = (*tokens, *(drafted,) * count, token)
                yield from follow(new, [*past, (name, count)], probability * chance * share)

    return Enumeration.of(follow((), [], 1.0), TARGET, 3).error(TARGET)


@pytest.mark.parametrize("rule", VERIFY)
def test_who_drafts_leaves_the_output_alone(rule: str) -> None:
    seen = set()

    def choose(past: Past, drawn: int) -> str:
        schedule, length = routed(routing(0.05, 0.95)), 1
        for name, accepted in past:
            schedule.next(length)
            assert schedule.drafter == name
            schedule.observe(1, accepted)
            length += accepted + 1
        schedule.next(length)
        seen.add((len(past), schedule.drafter))
        return schedule.drafter

    assert error(rule, choose) <= PROBABILITY_TOLERANCE
    assert {(1, "model"), (1, "b")} <= seen  # it does choose


@pytest.mark.parametrize("rule", VERIFY)
def test_the_enumeration_finds_a_choice_that_looks_ahead(rule: str) -> None:
    assert error(rule, lambda past, drawn: "b" if drawn == 1 else "model") > 1000 * PROBABILITY_TOLERANCE
