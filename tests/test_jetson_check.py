"""`scripts/jetson_check` with a stand-in for the command: every step is in the report, and a failure is the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/jetson_check"
STEPS = ["doctor", "compile b.bundle --engine tensorrt", "verify b.bundle", "calibrate b.bundle", "inspect b.bundle"]
SYSTEM = "/usr/local/bin:/usr/bin:/bin"


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
    assert report.count("passed in") == 6 - bool(failing)


def test_what_is_missing_on_the_device_is_left_out_or_said(folder: Path) -> None:
    run(folder, f"{stand_in(folder)}{os.pathsep}{SYSTEM}")
    report = (folder / "r.md").read_text()
    assert "jetson_check: line" not in report
    assert "clocks unknown: sudo jetson_clocks --show says" in report


@pytest.mark.parametrize("place", ["folder", "script", "checkout"])
def test_the_environment_is_found_where_the_page_puts_it(folder: Path, place: str) -> None:
    script = folder / "far/scripts/jetson_check"
    script.parent.mkdir(parents=True)
    script.write_bytes(SCRIPT.read_bytes())
    script.chmod(0o755)
    stand_in({"folder": folder, "script": script.parent, "checkout": script.parent.parent}[place] / ".venv")
    assert run(folder, SYSTEM, script).returncode == 0
    assert "    ran doctor" in (folder / "r.md").read_text()


def test_one_line_where_a_start_makes_no_sense(tmp_path: Path) -> None:
    script = tmp_path / "jetson_check"
    script.write_bytes(SCRIPT.read_bytes())
    script.chmod(0o755)
    refused = run(tmp_path, SYSTEM, script)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("b.bundle is no bundle: it has no manifest.json")
    assert refused.stderr.count("\n") == 1
    (tmp_path / "b.bundle").mkdir()
    (tmp_path / "b.bundle/manifest.json").touch()
    refused = run(tmp_path, SYSTEM, script)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("specexport is not on PATH")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "r.md").exists()
