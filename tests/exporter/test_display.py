"""Progress where no terminal is: each report stays on one line."""

from __future__ import annotations

import pytest
from specexport.exporter import display


def test_a_long_report_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(display, "SECONDS", -1.0)
    step = "graphs/target-onnx.onnx: timing of tactics " * 3
    with display.BuildDisplay() as shown, shown.stage("compile tensorrt", 160) as announce:
        announce(step)
    assert capsys.readouterr().err.splitlines() == ["compile tensorrt", f"compile tensorrt: {step}, 1 of 160"]
