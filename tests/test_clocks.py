"""The clock of the wall may jump: it only dates what is made, and nothing is measured or decided by it."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.exporter.stage_cache import finished_stage, make_stage
from specexport.serve import ServerSettings
from support.serving import served, slow_session

YEAR = 365 * 86400


@pytest.fixture
def jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds another year, also before 1970."""
    start, years = time.time(), itertools.cycle((0, 30, -90, 5, -60))
    monkeypatch.setattr(time, "time", lambda: start + next(years) * YEAR)


def test_a_server_under_a_clock_that_jumps(tmp_path: Path, jumps: None) -> None:
    session, _ = slow_session(tmp_path, Contract(256, 2, 8, "fp32"), 0.002)
    with served(session, ServerSettings(queue_timeout=20, stall_timeout=20, body_timeout=20)) as client:
        for count in (5, 6):
            assert client.chat(max_tokens=count)["usage"]["completion_tokens"] == count
        assert client.events("/v1/completions", {"prompt": "def", "max_tokens": 5})
        assert client.ask("GET", "/health")[0] == client.ask("GET", "/ready")[0] == 200
        assert client.idle()


def test_a_stage_that_is_being_made_outlives_a_jump(tmp_path: Path) -> None:
    """Another build finds it older than a week; what is locked is nobody's to remove."""
    one, other = "a" * 32, "b" * 32

    def make(folder: Path) -> None:
        (folder / "file").write_text("one")
        for path in (folder, folder.parent):
            os.utime(path, (0, 0))
        make_stage(tmp_path, other, lambda folder: None)

    assert (make_stage(tmp_path, one, make) / "file").read_text() == "one"
    assert finished_stage(tmp_path, one) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [one, other]
