"""`scripts/jetson_check` with a stand-in for the command: every step is in the report, and a failure is the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/jetson_check"
STEPS = ["doctor", "compile b.bundle --engine tensorrt", "verify b.bundle", "calibrate b.bundle", "inspect b.bundle"]


@pytest.mark.parametrize("failing", ["", "verify"])
def test_every_step_is_reported_and_a_failed_one_counts(tmp_path: Path, failing: str) -> None:
    command = tmp_path / "bin/specexport"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "ran $@"\n[ "$1" != "{failing}" ]\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPT, "b.bundle", "r.md"], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    report = (tmp_path / "r.md").read_text()
    assert [step for step in STEPS if f"    ran {step}" not in report] == []
    assert done.returncode == bool(failing)
    assert report.count("**failed** with exit code 1") == bool(failing)
    assert report.count("passed in") == 6 - bool(failing)
