"""benchmarks/routing.py: who drafts a round is decided by the rounds before it alone."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from specexport.calibration.measuring.trace_replay import Trace, cached, plain_seconds

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from extended_replay import costs
from routing import MOST, SUREST, Drafts, Known, Router, alone, known, routed, specialists

ROUTES = ("a", "b")
EVEN = {"a": 0.5, "b": 0.5}
PRICES = costs(0.12, 1.4, MOST)
AT = cached(PRICES)


def stream(count: int, length: int = 96) -> list[Drafts]:
    """Requests of both routes, whose own draft is right four times in five, and the other one seldom."""
    draw, found = random.Random(2), []
    for line in range(count):
        tokens = tuple(draw.randrange(1000) for _ in range(20 + length))
        agrees = tuple(draw.random() < 0.8 for _ in range(length))
        trace = Trace(line, ROUTES[line // 2 % 2], 20, tokens, agrees, length)
        found.append(specialists(trace, ROUTES, 0.3, draw))
    return found


def halves(requests: list[Drafts]) -> tuple[Known, Known]:
    first, second = (known(requests[half::2], ROUTES, "", PRICES, AT) for half in (0, 1))
    return first, second


def test_a_specialist_is_right_where_the_recorded_draft_is() -> None:
    trace = Trace(1, "a", 1, (1, 2, 3, 4), (True, None, False), 3)
    found = specialists(trace, ROUTES, 0.0, random.Random(1))
    assert found["a"].agrees == (True, None, False)
    assert found["b"].agrees == (False, None, False)


def test_the_belief_is_bayes() -> None:
    chances = {("a", "a"): (0.8,) * MOST, ("b", "a"): (0.2,) * MOST}
    router = Router(EVEN, Known({}, chances), PRICES, 1.0)
    router.observe("a", 3, 1)  # one accepted, one rejected
    odds = ((0.8 * 0.2) / (0.2 * 0.8)) ** 0.6
    assert router.belief["a"] / router.belief["b"] == pytest.approx(odds)
    router.observe("a", 2, 2)
    assert router.belief["a"] > 0.8
    assert sum(router.belief.values()) == pytest.approx(1.0)


def test_a_prompt_says_which_route_it_may_be() -> None:
    found = Known({}, {}, {"a": Counter([1, 1, 2]), "b": Counter([3, 3, 2])})
    assert found.of_prompt([2], 4) == pytest.approx(EVEN)
    assert found.of_prompt([1], 4)["a"] == pytest.approx(3 / 4)  # (2 + 1) to (0 + 1)
    assert found.of_prompt([1] * 99, 4)["a"] == pytest.approx(1 / (1 + math.exp(-SUREST)))


def test_a_draft_that_must_catch_up_promises_less() -> None:
    rates = {(route, draft): 1.0 for route in ROUTES for draft in ROUTES}
    router = Router(EVEN, Known(rates, {}), PRICES, 1.0)
    assert router.choose({"a": 500, "b": 0}) == "b"
    assert router.choose({"a": 0, "b": 500}) == "a"


def test_a_mixed_stream_is_faster_than_with_the_best_draft_alone() -> None:
    requests = stream(40)
    seconds, choices = routed(requests, halves(requests), "", PRICES)
    assert 1.05 * sum(seconds) < min(sum(alone(requests, draft, "", PRICES, AT)) for draft in ROUTES)
    plain = sum(plain_seconds(request["a"], AT) for request in requests)
    assert sum(seconds) < plain
    last = [chosen[-1] == request["a"].route for request, chosen in zip(requests, choices, strict=True)]
    assert sum(last) > 0.9 * len(last)


def test_who_drafts_a_round_depends_on_nothing_behind_its_place() -> None:
    requests = stream(8)
    found = halves(requests)
    _, before = routed(requests, found, "", PRICES)
    for number, request in enumerate(requests):
        kept = 40
        changed = {
            draft: replace(trace, agrees=trace.agrees[:kept] + tuple(not right for right in trace.agrees[kept:]))
            for draft, trace in request.items()
        }
        _, after = routed([*requests[:number], changed], found, "", PRICES)
        rounds = kept // (MOST + 1)  # that end before the change, at least
        assert after[number][:rounds] == before[number][:rounds]
        assert after[:number] == before[:number]
