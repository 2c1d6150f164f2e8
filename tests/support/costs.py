"""Costs that do not hang on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specexport.runtime.policy.cost_model import COSTS_VERSION, CostPoint, Costs, MeasuredTime


def time(seconds: float) -> MeasuredTime:
    return MeasuredTime(seconds, seconds, seconds)


def flat_point(draft: float, row: float = 0.0, host: float = 0.0, most: int = 4, context: int = 16) -> CostPoint:
    """The target's pass takes a second and `row` for each further row, a draft pass `draft`, a round `host` besides."""
    verify = [1 + row * k for k in range(most + 1)]
    rounds = tuple(time(host + k * draft + passes) for k, passes in enumerate(verify))
    return CostPoint(context, rounds, time(draft), tuple(map(time, verify)), (time(host),) * len(rounds))


def costs_at(*points: CostPoint, **changes: Any) -> Costs:
    return replace(Costs(COSTS_VERSION, "b", "h", "e", 0, "", 0.01, 0.0, points), **changes)
