"""The clock of the wall may jump: it only dates what is made, and nothing is measured or decided by it."""

from __future__ import annotations

import ast
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from specexport.bundle import Contract
from specexport.exporter.stage_cache import finished_stage, make_stage
from specexport.serve import ServerSettings
from support.serving import served, slow_session

ROOT = Path(__file__).resolve().parent.parent
WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "strftime", "ctime", "asctime", "clock_gettime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
# What the date is for.
DATED = {
    "calibration/calibrate.py": "when a calibration was made",
    "exporter/bundle_files.py": "when a bundle was built",
    "exporter/stage_cache.py": "files' dates, to drop stages that nobody used for a week",
    "runtime/costs/meter.py": "when costs were measured",
    "runtime/text/chat_template.py": "the date that templates write",
    "scripts/gpucheck/report.py": "when the check ran",
    "serve/routes/shapes.py": "`created` of answers",
    "serve/service.py": "`created` of the model",
}
IMPORTS = re.compile(r"^\s*(from|import) (time|datetime)\b", re.MULTILINE)  # others need not be parsed
YEAR = 365 * 86400


def wall_clocks(source: str) -> Iterator[str]:
    """Uses of the clock of the wall, whether by module or by a name that was imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in WALL:
            yield from (alias.name for alias in node.names if alias.name in WALL[node.module])
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
            if owner is not None and node.attr in WALL.get(owner, ()):
                yield f"{owner}.{node.attr}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("from time import time, monotonic", ["time"]),
        ("from datetime import datetime\ndatetime.now()", ["datetime.now"]),
        ("import datetime\ndatetime.datetime.now(); datetime.date.today()", ["datetime.now", "date.today"]),
        ("import time\ntime.monotonic(); time.perf_counter(); thing.time()", []),
    ],
)
def test_uses_are_found(source: str, found: list[str]) -> None:
    assert list(wall_clocks(source)) == found


def test_the_clock_of_the_wall_only_dates() -> None:
    outside = {"tests", "examples", "build", "dist"}
    files = [file.relative_to(ROOT) for file in ROOT.glob("[!.]*/**/*.py")] + [Path(p.name) for p in ROOT.glob("*.py")]
    sources = {
        file.as_posix(): (ROOT / file).read_text(encoding="utf-8") for file in files if file.parts[0] not in outside
    }
    found = {name for name, source in sources.items() if IMPORTS.search(source) and any(wall_clocks(source))}
    assert found == set(DATED)


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
