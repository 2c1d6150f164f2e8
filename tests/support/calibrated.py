"""Requests to calibrate with, and costs that do not hang on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from specexport.calibration.measuring.prompts import Request
from specexport.runtime.policy.cost_model import Costs

from .costs import costs_at, flat_point


def requests(count: int, routes: Sequence[str] = ("code", "prose")) -> list[Request]:
    rng = np.random.default_rng(1)
    return [
        Request(n + 1, routes[n % len(routes)], tuple(rng.integers(0, 250, 6 + n).tolist()), 16) for n in range(count)
    ]


def priced(costs: Costs, draft: float = 0.1) -> Costs:
    """The same with t1 = 1 and `draft` a draft pass: verdicts that do not hang on this machine's times."""

    def time(seconds: float) -> Any:
        return replace(costs.points[0].draft, median=seconds, p10=seconds, p90=seconds)

    most = costs.max_draft_tokens
    verify = tuple(time(1 + 0.05 * k) for k in range(most + 1))
    rounds = tuple(time(k * draft + 1 + 0.05 * k) for k in range(most + 1))
    same: Any = dict(rounds=rounds, draft=time(draft), verify=verify, host=(time(0.0),) * (most + 1))
    return replace(costs, points=tuple(replace(point, **same) for point in costs.points))


def flat_costs(draft: float, row: float = 0.0, most: int = 4) -> Costs:
    return costs_at(flat_point(draft, row, most=most))
