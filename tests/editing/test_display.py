"""Progress where no terminal is: one line a stage, and one for a step at intervals."""

from __future__ import annotations

import pytest
from specexport.editing import display


def test_steps_are_lines_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    step = "graphs/target-onnx.onnx: timing of tactics " * 3
    with display.BuildDisplay() as shown, shown.stage("compile tensorrt", 160) as announce:
        announce("load")
        monkeypatch.setattr(display, "SECONDS", 0.0)
        announce(step)
    assert capsys.readouterr().err.splitlines() == ["compile tensorrt", f"compile tensorrt: {step}, 2 of 160"]
