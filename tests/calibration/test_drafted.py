"""What is recorded of each draft, side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specexport.calibration.drafted import Drafted, normalized, of_drafter
from specexport.runtime.policy.cost_model import CostPoint, MeasuredTime
from support.calibrated import flat_costs

COSTS = flat_costs(0.2)


def test_costs_of_all_drafts_are_of_one_speed_of_the_host_and_keep_those_of_trees() -> None:
    """The host was half as fast while the second was measured."""

    def slower(point: CostPoint) -> CostPoint:
        return replace(point.scaled(2.0), tree=(MeasuredTime(4.0, 3.0, 6.0),))

    other = replace(COSTS, points=tuple(map(slower, COSTS.points)), draft_row=0.5)
    found = normalized({"first": COSTS, "other": other})
    assert found["first"] == COSTS
    assert found["other"].draft_row == 0.5
    for point, expected in zip(found["other"].points, COSTS.points, strict=True):
        assert [time.median for time in point.rounds] == pytest.approx([time.median for time in expected.rounds])
        assert point.tree == (MeasuredTime(2.0, 1.5, 3.0),)


def test_lookups_alone_belong_to_the_first() -> None:
    first, other = Drafted("a", (), COSTS), Drafted("b", (), COSTS)
    drafters = {"ngram": first, "a": first, "suffix+b": other, "a:b": other, "b:a": first}
    assert {name: of_drafter((first, other), name) for name in drafters} == drafters
