from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.calibration.bench.predict import predict_by
from specexport.runtime.policy.cost_model import CostPoint, Costs, MeasuredTime


def time(seconds: float) -> MeasuredTime:
    return MeasuredTime(seconds, seconds, seconds)


POINT = CostPoint(
    16,
    (time(1.1), time(1.6), time(2.3)),
    time(0.3),
    (time(1.0), time(1.2), time(1.6)),
    (time(0.1), time(0.1), time(0.1)),
)
COSTS = Costs(1, "b", "h", "onnxruntime", 0, "", 0.01, 0.0, (POINT,))


def pair(rounds: tuple[int, ...], passes: int, emitted: int, device: float = 0.0) -> Any:
    run = SimpleNamespace(emitted=emitted, rounds_by_drafted=rounds, draft_passes=passes, device_seconds=device)
    return SimpleNamespace(prompt_tokens=10, speculative=run)


def test_every_pass_is_charged() -> None:
    """Two plain rounds, one of them behind a draft pass whose token was not taken, and three rounds of two tokens."""
    found = predict_by(COSTS)("code", [pair((2, 0, 3), 7, 10)])
    assert found == pytest.approx(10 * 1.1 / (2 * 1.1 + 3 * 1.7 + 7 * 0.3))


def test_sums_over_requests() -> None:
    one, other = pair((4,), 0, 4), pair((0, 0, 2), 4, 6)
    assert predict_by(COSTS)("code", [one, other]) == pytest.approx((4 + 6) * 1.1 / (4 * 1.1 + 2 * 1.7 + 4 * 0.3))


def test_device_rounds_are_whole() -> None:
    device = replace(POINT, draft=time(0.0), verify=POINT.rounds, host=(time(0.0),) * 3)
    found = predict_by(replace(COSTS, points=(device,)))("code", [pair((1, 0, 3), 0, 8, device=2.0)])
    assert found == pytest.approx(8 * 1.1 / (1.1 + 3 * 2.3))
