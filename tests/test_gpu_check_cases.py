"""`scripts/gpu_check` without a GPU: its cases, each in a process of its own, and what is left when one goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gpucheck import check as check_module
from gpucheck.check import check
from gpucheck.plan import Plan
from gpucheck.presets import QUICK
from gpucheck.report import Report
from support import gpu_cases
from support.gpu_measurements import report

pytestmark = pytest.mark.slow


def plan(*shapes: str, seconds: float = 60.0, work: Path | None = None) -> Plan:
    return Plan(shapes, ["fp16"], QUICK, seconds, work)


def of(name: str) -> Report:
    return replace(report(), engine=name, outcomes=[])


def test_a_crash_leaves_what_was_found_and_the_step_it_came_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_run_case", gpu_cases.crashing_case)
    lines: list[str] = []
    reports = {name: of(name) for name in ("tensorrt", "tensorrt-rtx")}
    check(plan("tiny"), reports, tmp_path, lines.append)
    crashed, whole = (json.loads(path.read_text())["outcomes"][0] for path in sorted(tmp_path.iterdir()))
    assert crashed["error"] == "the process was ended by SIGSEGV, during: rules"
    assert crashed["findings"] == [{"name": "parity", "passed": True, "detail": "1e-5 off"}]
    assert (crashed["step"], crashed["finished"], whole["finished"], whole["error"]) == ("rules", False, True, "")
    assert lines[:4] == ["tiny, fp16, tensorrt", "  parity", "  proved parity", "  rules"]
    assert lines[4:6] == ["  the process was ended by SIGSEGV, during: rules", "tiny, fp16, tensorrt-rtx"]
