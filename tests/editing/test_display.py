"""Progress where no terminal is: a line at intervals, also within a long step."""

from __future__ import annotations

from time import sleep

import pytest
from specexport.editing import display
from specexport.errors import ProofError


def lines(capsys: pytest.CaptureFixture[str], least: int) -> list[str]:
    """What stderr has, once it is this many lines."""
    text = ""
    for _ in range(6000):
        text += capsys.readouterr().err
        if text.count("\n") >= least:
            return text.splitlines()
        sleep(0.01)
    raise AssertionError(text)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SECONDS", 0.01)


def test_a_long_step_is_told_again_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    step = "graphs/target-onnx.onnx: timing of tactics " * 3
    with display.BuildDisplay() as shown, shown.stage("compile tensorrt", 160) as announce:
        announce(step)
        told = lines(capsys, 3)
    assert told[0] == "compile tensorrt"
    assert set(told[1:]) == {f"compile tensorrt: {step}, 1 of 160"}


def test_the_rest_is_estimated_from_steps_that_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "_left", lambda announced, steps, started, since: f", {since >= started}")
    with display.BuildDisplay() as shown, shown.stage("export target", 7) as announce:
        announce("load")
        announce("trace")
        last = ""
        while "trace" not in last:
            last = lines(capsys, 1)[-1]
    assert last == "export target: trace, 2 of 7, True"


def test_the_estimate_is_for_the_steps_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "perf_counter", lambda: 70.0)
    assert display._left(4, 7, 10.0, 70.0) == ", about 0:01:20 left"  # three steps took 60 s, four are left
    assert display._left(4, 7, 10.0, 40.0) == ", about 0:00:10 left"  # three took 30 s, and the fourth 30 already
    assert display._left(4, 7, 10.0, 25.0) == ""  # the fourth took longer than that
    assert display._left(3, 7, 10.0, 70.0) == ""


def test_a_stage_that_fails_stops_telling(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with display.BuildDisplay() as shown, shown.stage("prove", 2) as announce:
            announce("target")
            raise ProofError("wrong")

    with pytest.raises(ProofError, match="wrong"):
        fail()
    capsys.readouterr()
    sleep(0.05)
    assert capsys.readouterr().err == ""
