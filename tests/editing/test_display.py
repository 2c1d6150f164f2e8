"""Progress where no terminal is: a line at intervals, also within a long step."""

from __future__ import annotations

from time import sleep

import pytest
from specexport.editing import display


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
