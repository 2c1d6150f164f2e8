"""Which route a request is like: the start by its prompt, Bayes by its rounds, and what a file may say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from specexport.runtime.policy.routing import (
    MAX_LOG_ODDS,
    ROUTING_VERSION,
    KnownDraft,
    KnownRoute,
    RoutePosterior,
    Routing,
)
from support.refusals import refused


def known(a: float, b: float) -> dict[str, KnownDraft]:
    """Speedups and chances of two drafters, whose chances are a third of those."""
    return {name: KnownDraft(speed, (speed / 3,) * 3) for name, speed in (("x", a), ("y", b))}


ROUTES = {"a": KnownRoute(known(2.4, 0.6), {"1": 2, "2": 1}, 3), "b": KnownRoute(known(0.6, 2.4), {"2": 1, "3": 2}, 3)}
ROUTING = Routing(ROUTING_VERSION, "", "", 4, ("x", "y"), ROUTES)


def test_a_prompt_says_which_route_it_may_be() -> None:
    assert ROUTING.of_prompt([2]) == pytest.approx({"a": 0.5, "b": 0.5})
    assert ROUTING.of_prompt([1])["a"] == pytest.approx(3 / 4)  # (2 + 1) to (0 + 1)
    assert ROUTING.of_prompt([1] * 99)["a"] == pytest.approx(1 / (1 + math.exp(-MAX_LOG_ODDS)))
    assert replace(ROUTING, vocab=0).of_prompt([1] * 99) == {"a": 0.5, "b": 0.5}


def test_the_posterior_is_bayes() -> None:
    posterior = RoutePosterior(ROUTING, [])
    assert posterior.speedups["x"] == pytest.approx(1.5)
    assert posterior.chances("y") == pytest.approx((0.5,) * 3)
    posterior.observe("x", 3, 1)  # one accepted, one rejected: 0.8 * 0.2 on both routes
    assert posterior.shares[0] == pytest.approx(0.5)
    posterior.observe("x", 2, 2)
    odds = (0.8 / 0.2) ** (2 * 0.6)
    assert posterior.shares[0] == pytest.approx(0.98 * odds / (1 + odds) + 0.01)
    assert posterior.speedups["x"] > 2 > posterior.speedups["y"]
    for _ in range(9):
        posterior.observe("y", 3, 3)
    assert posterior.shares[1] > 0.9
    assert sum(posterior.shares) == pytest.approx(1.0)


def test_the_same_outcome_says_something_else_of_another_drafter() -> None:
    """What rounds say is kept with the routing, for all requests."""
    for _ in range(2):
        for drafter, likely in (("x", "a"), ("y", "b")):
            for accepted in (2, 0):
                posterior = RoutePosterior(ROUTING, [])
                posterior.observe(drafter, 2, accepted)
                assert (posterior.shares["ab".index(likely)] > 0.5) == (accepted == 2)


def test_more_tokens_than_chances_and_sure_ones_leave_a_posterior() -> None:
    sure = {"x": KnownDraft(1.0, (1.0,)), "y": KnownDraft(1.0, (0.0,))}
    posterior = RoutePosterior(replace(ROUTING, routes={"a": KnownRoute(sure, {}, 0), "b": ROUTES["b"]}), [])
    posterior.observe("x", 4, 1)
    assert posterior.shares[1] > 0.5
    posterior.observe("y", 4, 4)
    assert posterior.shares[1] > 0.9
    assert sum(posterior.shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: replace(ROUTING, schema_version=ROUTING_VERSION + 1),
        lambda: replace(ROUTING, drafters=("x",)),
        lambda: replace(ROUTING, routes={}),
        lambda: KnownDraft(math.nan, (0.5,)),
        lambda: KnownDraft(1.0, (1.5,)),
        lambda: KnownRoute(known(1, 1), {"-1": 2}, 3),
        lambda: KnownRoute(known(1, 1), {"1": 4}, 3),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any) -> None:
    with refused(ValueError):
        wrong()
