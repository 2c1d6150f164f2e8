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


def pair(rounds: tuple[int, ...], passes: int, emitted: int, device: float = 0.0, guesses: int = 0) -> Any:
    run = SimpleNamespace(
        emitted=emitted, rounds_by_drafted=rounds, draft_passes=passes, device_seconds=device, guess_passes=guesses
    )
    return SimpleNamespace(prompt_tokens=10, speculative=run)


def predicted(costs: Costs, run: list[Any]) -> float | None:
    return predict_by({"model": costs}, "model", lambda route: "model")("code", run)


def test_every_pass_is_charged() -> None:
    """Two plain rounds, one of them behind a draft pass whose token was not taken, and three rounds of two tokens."""
    found = predicted(COSTS, [pair((2, 0, 3), 7, 10)])
    assert found == pytest.approx(10 * 1.1 / (2 * 1.1 + 3 * 1.7 + 7 * 0.3))


def test_device_rounds_are_whole() -> None:
    device = replace(POINT, draft=time(0.0), verify=POINT.rounds, host=(time(0.0),) * 3)
    found = predicted(replace(COSTS, points=(device,)), [pair((1, 0, 3), 0, 8, device=2.0)])
    assert found == pytest.approx(8 * 1.1 / (1.1 + 3 * 2.3))


def test_what_drafts_for_the_draft_is_charged_with_the_rows_of_its_guesses() -> None:
    small = replace(COSTS, points=(replace(POINT, draft=time(0.05)),))
    costs, run = {"model": replace(COSTS, draft_row=0.01), "small": small}, [pair((0, 0, 3), 4, 9, guesses=6)]
    alone = 3 * 1.7 + 4 * 0.3
    expected = {"small:model": alone + 6 * (0.05 + 0.01), "model:small": 3 * 1.7 + 4 * 0.05 + 6 * (0.3 + 0.0)}
    for drafter, seconds in expected.items():
        assert predict_by(costs, "model", lambda _, name=drafter: name)("code", run) == pytest.approx(9 * 1.1 / seconds)
    looked_up = predict_by(costs, "model", lambda _: "ngram:model")("code", [pair((0, 0, 3), 4, 9)])
    assert looked_up == pytest.approx(9 * 1.1 / alone)
    for drafter in ("other:model", "model:other", "ngram:other"):
        assert predict_by(costs, "model", lambda _, name=drafter: name)("code", run) is None
