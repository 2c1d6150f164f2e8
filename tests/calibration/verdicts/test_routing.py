"""The replay that decides whether sessions choose among drafts: by the schedule of a session."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.calibration.measuring.replay import Runs, plain_seconds
from specexport.calibration.measuring.session_replay import Priced, routed_seconds
from specexport.calibration.measuring.traces import Trace, cached
from specexport.calibration.verdicts import routing
from specexport.calibration.verdicts.routing import Stream, known, routed, unrouted
from support.calibrated import flat_costs

MOST, ROUTES = 4, ("a", "b")
PRICES = Priced(flat_costs(0.12, 0.1, MOST))
AT = cached(PRICES.costs)


def stream(count: int, length: int = 96) -> Stream:
    """Requests of both routes, whose own draft is right four times in five, and the other one seldom."""
    draw, found = random.Random(2), []
    for line in range(count):
        tokens = tuple(draw.randrange(1000) for _ in range(20 + length))
        agrees = [draw.random() < 0.8 for _ in range(length)]
        own = Trace(line, ROUTES[line // 2 % 2], 20, tokens, tuple(agrees), length)
        other = replace(own, agrees=tuple(right and draw.random() < 0.3 for right in agrees))
        found.append({name: own if name == own.route else other for name in ROUTES})
    return Stream(found, dict.fromkeys(ROUTES, PRICES))


def test_a_mixed_stream_is_faster_than_with_the_best_draft_alone() -> None:
    requests = stream(40)
    seconds, choices = routed(requests, 0)
    assert 1.05 * sum(seconds) < min(map(sum, unrouted(requests).values()))
    assert sum(seconds) < sum(plain_seconds(trace, AT) for trace in requests.traces("a"))
    last = [chosen[-1] == runs["a"].route for runs, chosen in zip(requests.requests, choices, strict=True)]
    assert sum(last) > 0.9 * len(last)


def test_who_drafts_a_round_depends_on_nothing_behind_its_place() -> None:
    requests = stream(8)
    sides, halves = requests.halves()
    routings = [known(half, 0) for half in halves]

    def choices(found: list[Runs]) -> list[list[str]]:
        return routed_seconds(found, lambda number: routings[1 - sides[number]], requests.drafters)[1]

    before = choices(list(requests.requests))
    for number, runs in enumerate(requests.requests):
        kept = 40
        changed = {
            draft: replace(trace, agrees=trace.agrees[:kept] + tuple(not right for right in trace.agrees[kept:]))
            for draft, trace in runs.items()
        }
        after = choices([*requests.requests[:number], changed])
        rounds = kept // (MOST + 1)  # that end before the change, at least
        assert after[number][:rounds] == before[number][:rounds]
        assert after[:number] == before[:number]


@pytest.mark.parametrize(("seconds", "chosen"), [(9.9, False), (9.0, True)])
def test_sessions_choose_only_where_that_gains_enough(
    seconds: float, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Stream([], dict.fromkeys(ROUTES, PRICES))
    stubs = {"_stream": found, "unrouted": {"a": [10.0], "b": [12.0]}, "routed": ([seconds], []), "known": "known"}
    for name, stub in stubs.items():
        monkeypatch.setattr(routing, name, lambda *_, stub=stub: stub)
    routes: Any = [SimpleNamespace(policy=SimpleNamespace(verdict="on", drafter=name)) for name in ROUTES]
    drafted: Any = [SimpleNamespace(records=[None] * 4)]
    assert (routing.choose_routing(drafted, routes, 0, "", "")[0] == "known") == chosen
