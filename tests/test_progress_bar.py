"""How far a measurement is, told where there is no terminal."""

from __future__ import annotations

import pytest
from specexport.cli import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its only element is the time."""
    now = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


def test_a_line_now_and_then_with_what_is_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("calibrate", "deciding") as advance:
        for done in range(11):
            advance(done, 10)
            clock[0] += 10
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "calibrate: 2 of 10, about 0:01:20 left",
        "calibrate: 4 of 10, about 0:01:00 left",
        "calibrate: 6 of 10, about 0:00:40 left",
        "calibrate: 8 of 10, about 0:00:20 left",
        "calibrate: 10 of 10, deciding",
    ]
