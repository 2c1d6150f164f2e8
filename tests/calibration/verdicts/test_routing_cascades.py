"""Requests without a route, where one who may draft is a cascade: what it takes is written down and believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.calibration.measuring import session_replay
from specexport.calibration.measuring.session_replay import Priced, relative_draft_cost, routed_seconds
from specexport.calibration.measuring.traces import Trace
from specexport.calibration.verdicts import routing
from specexport.calibration.verdicts.routing import Stream, known
from specexport.runtime.policy.routed_schedule import Candidate, RoutedSchedule
from support.calibrated import flat_costs

CASCADE = "ngram:model"
COSTS = flat_costs(0.2, draft_row=0.01)
# Lookups guess right on the first route, and know nothing on the second.
REPEATS = Trace(1, "a", 6, (1, 2, 3, 4, 1, 2, 3, 4, 1, 2), (True,) * 4, 4)
OTHER = Trace(2, "b", 6, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (True,) * 4, 4)
STREAM = Stream(
    [dict.fromkeys((CASCADE, "model"), replace(trace, line=line)) for line in range(3) for trace in (REPEATS, OTHER)],
    {name: Priced(COSTS) for name in (CASCADE, "model")},
)


@pytest.mark.parametrize(("seconds", "chosen"), [(9.9, False), (9.0, True)])
def test_sessions_choose_only_where_that_gains_enough(
    seconds: float, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream([], {name: Priced(COSTS) for name in ("model", "b")})
    stubs = {"_stream": stream, "unrouted": {"model": [10.0], "b": [12.0]}, "routed": ([seconds], []), "known": "known"}
    for name, found in stubs.items():
        monkeypatch.setattr(routing, name, lambda *_, found=found: found)
    routes: Any = [SimpleNamespace(policy=SimpleNamespace(verdict="on", drafter=name)) for name in stream.drafters]
    drafted: Any = [SimpleNamespace(records=[None] * 4)]
    assert (routing.choose_routing(drafted, routes, 0, "", "")[0] == "known") == chosen


def test_each_route_says_what_a_token_of_the_cascade_takes() -> None:
    routes = known(STREAM, 0).routes
    found = {name: route.drafters[CASCADE].unit for name, route in routes.items()}
    assert found == {"a": relative_draft_cost([REPEATS], CASCADE, COSTS), "b": 1.0}
    assert found["a"] < 0.1
    assert {route.drafters["model"].unit for route in routes.values()} == {1.0}


def test_a_replay_believes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    believed: list[dict[str, float]] = []

    class Seen(RoutedSchedule):
        def __init__(self, routing: Any, prompt: Any, candidates: Mapping[str, Candidate], *rest: Any) -> None:
            believed.append({name: one.costs.at(1).draft for name, one in candidates.items()})
            super().__init__(routing, prompt, candidates, *rest)

    monkeypatch.setattr(session_replay, "RoutedSchedule", Seen)
    routing = known(STREAM, 0)
    routed_seconds(STREAM.requests, lambda _: routing, STREAM.drafters)
    assert len(believed) == len(STREAM.requests)
    assert believed[0] == {CASCADE: pytest.approx(routing.unit(CASCADE) * 0.2), "model": 0.2}
