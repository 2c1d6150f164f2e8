"""What is recorded of each draft, side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specexport.calibration.drafted import Drafted, normalized, of_drafter
from support.calibrated import flat_costs

COSTS = flat_costs(0.2)


def test_costs_of_all_drafts_are_of_one_speed_of_the_host() -> None:
    """The host was half as fast while the second was measured."""
    other = replace(COSTS, points=tuple(point.scaled(2.0) for point in COSTS.points))
    costs = normalized({"first": COSTS, "other": other})
    assert costs["first"] == COSTS
    for point, expected in zip(costs["other"].points, COSTS.points, strict=True):
        assert [time.median for time in point.rounds] == pytest.approx([time.median for time in expected.rounds])


def test_lookups_alone_belong_to_the_first() -> None:
    first, other = Drafted("a", (), COSTS), Drafted("b", (), COSTS)
    drafters = {"ngram": first, "a": first, "ngram+b": other}
    assert {name: of_drafter((first, other), name) for name in drafters} == drafters
