"""`scripts/jetson_check` with a stand-in for the command: every step is in the report, and a failure is the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/jetson_check"
STEPS = ["doctor", "compile b.bundle --engine tensorrt", "verify b.bundle", "inspect b.bundle"]


def run(folder: Path, path: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, "b.bundle", "r.md"], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )


def stand_in(folder: Path, failing: str = "") -> Path:
    command = folder / "bin/specexport"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\necho "ran $@"\n[ "$1" != "{failing}" ]\n')
    command.chmod(0o755)
    return command.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a bundle, as far as the script looks into it."""
    (tmp_path / "b.bundle").mkdir()
    (tmp_path / "b.bundle/manifest.json").touch()
    return tmp_path


@pytest.mark.parametrize("failing", ["", "verify"])
def test_every_step_is_reported_and_a_failed_one_counts(folder: Path, failing: str) -> None:
    done = run(folder, f"{stand_in(folder, failing)}{os.pathsep}{os.environ['PATH']}")
    report = (folder / "r.md").read_text()
    assert [step for step in STEPS if f"    ran {step}" not in report] == []
    assert done.returncode == bool(failing)
    assert report.count("**failed** with exit code 1") == bool(failing)
    assert report.count("passed in") == 5 - bool(failing)
