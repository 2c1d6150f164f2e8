"""Locks end with their process (tests/exporter/test_killed.py); here, a system that has none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from specexport import locks
from specexport.atomic import new_folder, temporary_sibling
from specexport.calibration.measuring.journal import Journal
from specexport.errors import OutputError

IMPORTS = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from specexport.calibration.measuring import journal
from specexport import atomic
"""


def build(folder: Path) -> None:
    with new_folder(folder / "out", force=False):
        pass


def compile_plans(folder: Path) -> None:
    with temporary_sibling(folder / "out"):
        pass


def measure(folder: Path) -> None:
    Journal.open(folder / "journal.jsonl", {})


@pytest.mark.parametrize("use", [build, compile_plans, measure])
def test_a_system_without_locks_is_named(
    use: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(OutputError, match=sys.platform) as caught:
        use(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_locks_imports_without_them() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True)
