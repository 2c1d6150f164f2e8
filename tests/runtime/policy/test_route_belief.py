"""Which route a request is like: the start by its prompt, Bayes by its rounds, and what a file may say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from specexport.runtime.policy.route_belief import ROUTING_VERSION, SUREST, Belief, KnownDraft, KnownRoute, Routing
from support.refusals import refused


def known(a: float, b: float) -> dict[str, KnownDraft]:
    """Speedups and chances of two drafters, whose chances are a third of those."""
    return {name: KnownDraft(speed, (speed / 3,) * 3) for name, speed in (("x", a), ("y", b))}


ROUTES = {"a": KnownRoute(known(2.4, 0.6), {"1": 2, "2": 1}, 3), "b": KnownRoute(known(0.6, 2.4), {"2": 1, "3": 2}, 3)}
ROUTING = Routing(ROUTING_VERSION, "", "", 4, ("x", "y"), ROUTES)


def test_a_prompt_says_which_route_it_may_be() -> None:
    assert ROUTING.of_prompt([2]) == pytest.approx({"a": 0.5, "b": 0.5})
    assert ROUTING.of_prompt([1])["a"] == pytest.approx(3 / 4)  # (2 + 1) to (0 + 1)
    assert ROUTING.of_prompt([1] * 99)["a"] == pytest.approx(1 / (1 + math.exp(-SUREST)))
    assert replace(ROUTING, vocab=0).of_prompt([1] * 99) == {"a": 0.5, "b": 0.5}


def test_the_belief_is_bayes() -> None:
    belief = Belief(ROUTING, [])
    assert belief.speedups["x"] == pytest.approx(1.5)
    assert belief.chances("y") == pytest.approx((0.5,) * 3)
    belief.observe("x", 3, 1)  # one accepted, one rejected: 0.8 * 0.2 on both routes
    assert belief.shares["a"] == pytest.approx(0.5)
    belief.observe("x", 2, 2)
    odds = (0.8 / 0.2) ** (2 * 0.6)
    assert belief.shares["a"] == pytest.approx(0.98 * odds / (1 + odds) + 0.01)
    assert belief.speedups["x"] > 2 > belief.speedups["y"]
    for _ in range(9):
        belief.observe("y", 3, 3)
    assert belief.shares["b"] > 0.9
    assert sum(belief.shares.values()) == pytest.approx(1.0)


def test_the_same_outcome_says_something_else_of_another_drafter() -> None:
    """What rounds say is kept with the routing, for all requests."""
    for _ in range(2):
        for drafter, likely in (("x", "a"), ("y", "b")):
            for accepted in (2, 0):
                belief = Belief(ROUTING, [])
                belief.observe(drafter, 2, accepted)
                assert (belief.shares[likely] > 0.5) == (accepted == 2)


def test_more_tokens_than_chances_and_sure_ones_leave_a_belief() -> None:
    sure = {"x": KnownDraft(1.0, (1.0,)), "y": KnownDraft(1.0, (0.0,))}
    belief = Belief(replace(ROUTING, routes={"a": KnownRoute(sure, {}, 0), "b": ROUTES["b"]}), [])
    belief.observe("x", 4, 1)
    assert belief.shares["b"] > 0.5
    belief.observe("y", 4, 4)
    assert belief.shares["b"] > 0.9
    assert sum(belief.shares.values()) == pytest.approx(1.0)


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
