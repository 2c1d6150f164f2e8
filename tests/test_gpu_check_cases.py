"""`scripts/gpu_check` without a GPU: its cases, each in a process of its own, and what is left when one goes wrong."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpucheck import apart as apart_module
from gpucheck import case as case_module
from gpucheck import check as check_module
from gpucheck.apart import EndedError, apart
from gpucheck.check import check, prepare
from gpucheck.plan import Plan
from gpucheck.presets import FULL, QUICK
from gpucheck.report import Report
from specexport.errors import EngineError
from support import gpu_cases
from support.gpu_measurements import RIGHT, here, report
from support.refusals import refused

# In a process of its own.


def test_work_apart_tells_and_returns() -> None:
    heard: list[Any] = []
    assert apart(gpu_cases.doubled, 21, hear=heard.append) == 42
    assert heard[0] == "doubling 21"
    assert heard[1] != os.getpid()


@pytest.mark.parametrize(
    "work",
    [
        gpu_cases.refused,
        gpu_cases.mistaken,
        gpu_cases.without_package,
    ],
)
def test_what_is_raised_apart_is_raised_here(work: Any) -> None:
    with refused(EngineError) as caught:
        apart(work, hear=lambda told: None)
    assert not isinstance(caught.value, EndedError)


@pytest.mark.parametrize(
    "work",
    [gpu_cases.crashes, gpu_cases.exits],
)
def test_a_process_that_dies_says_how(work: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with refused(EndedError, "ended"):
        apart(work, hear=lambda told: None)
    assert ("in crashes" in capfd.readouterr().err) == (work is gpu_cases.crashes)  # where Python was


@pytest.fixture
def time_is_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and the ten minutes that a case may take are over."""
    now = [0.0]
    monkeypatch.setattr(apart_module, "monotonic", lambda: now[0])
    return lambda: now.append(now.pop() + 601.0)


def test_a_process_that_hangs_is_ended(time_is_up: Callable[[], None]) -> None:
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        time_is_up()

    with refused(EndedError, "600"):
        apart(gpu_cases.hangs, hear=hear, seconds=600)
    assert heard == ["waiting"]


# One engine after the other.


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


def test_every_case_has_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(check_module, "monotonic", lambda: 1000.0 + sum(given))  # each takes all that it may
    monkeypatch.setattr(check_module, "apart", lambda *_, seconds, **__: given.append(seconds))
    check(plan("tiny", "small", seconds=120.0), {"tensorrt": of("tensorrt")}, tmp_path, lambda line: None)
    assert given == [60.0, 60.0]
    monkeypatch.setattr(check_module, "monotonic", lambda: 1000.0)  # they take none
    check(plan("tiny", "small", seconds=120.0), {"tensorrt": of("tensorrt")}, tmp_path, lambda line: None)
    assert given[2:] == [60.0, 120.0]
    assert (QUICK.seconds, FULL.seconds) == (240.0, math.inf)


def test_a_case_that_hangs_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_is_up: Callable[[], None]
) -> None:
    monkeypatch.setattr(check_module, "_run_case", gpu_cases.hanging_case)
    monkeypatch.setattr(check_module, "monotonic", lambda: 0.0)
    reports = {"tensorrt": of("tensorrt")}
    check(plan("tiny", seconds=600.0), reports, tmp_path, lambda line: time_is_up() if "load" in line else None)
    assert reports["tensorrt"].outcomes[0].error == "took longer than the 600 s that were left for it, during: load"


def test_an_engine_that_fails_is_told_of_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def build(target: str, draft: str, root: Path, options: Any, progress: Any) -> Any:
        assert Path(target, "config.json").is_file()
        assert (options.precision, options.max_draft_tokens, options.max_seq_len) == ("fp16", 4, 2048)
        if options.engines == ("tensorrt",):
            raise EngineError("no kernel for this card; choose another")
        if options.engines == ("tensorrt-rtx",):
            raise ValueError("a mistake\nof ours")
        with progress.stage("write", 1):
            progress.note("no plans were made here: the card is too old")
        return SimpleNamespace(times=(), bundle=SimpleNamespace(manifest=SimpleNamespace(plans=())))

    monkeypatch.setattr(check_module, "apart", here)
    monkeypatch.setattr(case_module, "build", build)
    monkeypatch.setattr(case_module, "LIBRARIES", {"without plans": ""})
    lines: list[str] = []
    reports = {name: of(name) for name in ("tensorrt", "tensorrt-rtx", "without plans")}
    check(plan("tiny"), reports, tmp_path, lines.append)
    errors = {name: entry.outcomes[0].error for name, entry in reports.items()}
    assert errors == {
        "tensorrt": "no kernel for this card; choose another",
        "tensorrt-rtx": "ValueError: a mistake",
        "without plans": "no plans were made here: the card is too old",
    }
    assert [json.loads(path.read_text())["outcomes"][0]["error"] for path in sorted(tmp_path.iterdir())] == list(
        errors.values()
    )
    assert "Traceback" in capfd.readouterr().err  # of the second one, which nobody foresaw
    assert "  no kernel for this card; choose another" in lines


class Opened:
    """A build's report, a subject and a session."""

    times = ()

    def __init__(self, *_: Any) -> None:
        self.session, self.bundle = self, SimpleNamespace(manifest=SimpleNamespace(plans=[]))

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_what_was_found_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a borrowed machine may be cut off at any time."""

    def examine(*arguments: Any) -> None:
        news = arguments[-1]
        news.begin("parity")
        news.outcome.findings.append(RIGHT)
        news.say("proved")
        (row,) = json.loads(next(tmp_path.glob("*.json")).read_text())["outcomes"]
        assert row["findings"] == [{"name": "parity", "passed": True, "detail": "1e-5 off"}]
        assert (row["passed"], row["step"]) == (False, "parity")
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "apart", here)
    monkeypatch.setattr(case_module, "build", Opened)
    monkeypatch.setattr(case_module, "open_subject", Opened)
    monkeypatch.setattr(case_module, "examine", examine)
    with pytest.raises(KeyboardInterrupt):
        check(plan("tiny"), {"onnxruntime-cuda": of("onnxruntime-cuda")}, tmp_path, lambda line: None)


@pytest.mark.parametrize("engine", ["onnxruntime-cuda", "tensorrt-rtx"])
def test_bundles_are_kept_where_a_folder_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """But for plans: what they depend on is not in the bundle's name."""
    built: list[Path] = []

    def build(target: str, draft: str, root: Path, *_: Any) -> Any:
        root.mkdir()
        built.append(root)
        opened = Opened()
        opened.bundle.manifest.plans.append(SimpleNamespace(engine=engine))
        return opened

    monkeypatch.setattr(check_module, "apart", here)
    monkeypatch.setattr(case_module, "build", build)
    monkeypatch.setattr(case_module, "open_subject", Opened)
    monkeypatch.setattr(case_module, "examine", lambda *_: None)
    for work in (tmp_path / "work", tmp_path / "work", None):
        check(plan("tiny", work=work), {engine: of(engine)}, tmp_path / "found", lambda line: None)
    kept = engine == "onnxruntime-cuda"
    assert len(built) == (2 if kept else 3)
    assert [path.exists() for path in built] == ([True, False] if kept else [False] * 3)
    assert (tmp_path / "work/tiny/target/config.json").is_file()
    monkeypatch.setattr(case_module, "stage_key", lambda **_: "of other sources")
    check(plan("tiny", work=tmp_path / "work"), {engine: of(engine)}, tmp_path / "found", lambda line: None)
    assert len(built) == (3 if kept else 4)


def test_preparing_leaves_bundles_for_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(target: str, draft: str, root: Path, options: Any, progress: Any) -> Any:
        assert Path(target, "config.json").is_file()
        root.mkdir()
        with progress.stage("export target", 1):
            return Opened()

    monkeypatch.setattr(check_module, "apart", here)
    monkeypatch.setattr(case_module, "build", build)
    lines: list[str] = []
    for _ in range(2):
        prepare(plan("tiny", work=tmp_path), ["onnxruntime-cuda"], lines.append)
    first = ["tiny, fp16, onnxruntime-cuda", "  make the checkpoints", "  export target"]
    assert lines == [*first, first[0], "  bundle: of an earlier run"]
