"""What a command says on stderr meanwhile: how far a measurement is, that the host is busy, what took how long."""

from __future__ import annotations

import os
import random

import pytest
from specexport.cli import progress
from specexport.cli.progress import note_busy_host, time_lines
from specexport.editing.progress import StageTime


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


def test_what_was_resumed_tells_nothing_about_the_speed(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("calibrate", percent=True) as advance:
        for done in range(600, 1001, 100):
            advance(done, 1000)
            clock[0] += 10
    assert capsys.readouterr().err.splitlines() == [
        "calibrate: resumed at 60 %",
        "calibrate: 80 %, about 0:00:20 left",
        "calibrate: 100 %",
    ]


@pytest.mark.parametrize("measured", [0.0, 30.0, 301.0, 901.0])
@pytest.mark.parametrize("load", [2.4, 2.6, None])
def test_a_load_above_the_cpus_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float | None, measured: float
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    most = {0.0: 1, 30.0: 1, 301.0: 5, 901.0: 15}[measured]
    if load is None:  # a system without one
        monkeypatch.delattr(os, "getloadavg")
    else:
        monkeypatch.setattr(os, "getloadavg", lambda: tuple(load * (minutes == most) for minutes in (1, 5, 15)))
    note_busy_host(measured)
    told = capsys.readouterr().err
    assert "2.6 on 2 CPUs" in told if load == 2.6 else told == ""
    assert ("measure again" in told) == (measured > 0 and load == 2.6)


def test_what_no_stage_took_has_a_line_of_its_own() -> None:
    stages = [StageTime("check the pair", 0.12, False), StageTime("export target", 0.0, True)]
    assert time_lines([*stages, StageTime("prove", 2.04, False)], 6.31) == [
        "check the pair          0.1 s",
        "export target        reused",
        "prove                   2.0 s",
        "everything else         4.2 s",
        "total                   6.3 s",
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_lines_add_up_whatever_is_rounded(seed: int) -> None:
    draw = random.Random(seed)
    stages = [StageTime(str(index), draw.random(), False) for index in range(draw.randint(1, 12))]
    lines = time_lines(stages, sum(stage.seconds for stage in stages) + draw.random() / 10)
    *parts, total = [float(line.split()[-2]) for line in lines]
    assert sum(parts) == pytest.approx(total)
    assert min(parts) >= 0
