"""benchmarks/reliability: what its parts count as a fault, with runs that have one."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reliability import forks, fuzz_case, kills
from reliability.forks import Ended
from reliability.kills import Trial
from specexport.errors import BundleError

FINE = Ended(0, 2.0, "")
KILLED = Ended(-signal.SIGKILL, 0.1, "")
REFUSAL = Ended(1, 0.1, "export target\nError: the disk is full; nothing was kept\n")
TRACEBACK = Ended(2, 0.1, "Traceback (most recent call last):\nKeyError: 'x'\n")


def went(
    monkeypatch: pytest.MonkeyPatch,
    killed: Ended = KILLED,
    whole: Ended = FINE,
    check: Callable[[], None] = lambda: None,
    ended: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Nine kills, by what a run that is to be killed ends with, and one that is not."""

    def run(work: forks.Work, log: Path, kill_after: float | None = None) -> Ended:
        assert kill_after is None or 0 <= kill_after <= FINE.seconds
        return whole if kill_after is None else killed

    monkeypatch.setattr(kills.forks, "run", run)
    return Trial(lambda: None, check, ended).go("a build", 9, Path("log"), random.Random(0))


def broken() -> None:
    raise AssertionError("half a bundle\nis there")


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({"check": broken}, "behind kill 1: AssertionError: half a bundle | is there"),
        ({"ended": broken}, "behind a whole run: AssertionError: half a bundle | is there"),
        ({"whole": TRACEBACK}, "a run behind 0 kills: code 2: Traceback"),
        ({"killed": REFUSAL}, "run before kill 1: code 1: export target | Error: the disk is full"),
    ],
)
def test_kills_that_lose_something(faults: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = went(monkeypatch, **faults)["wrong"]
    assert wrong[0].startswith(told)
    assert not any("\n" in line for line in wrong)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BundleError("the manifest is none"), "error"),
        (BundleError("x" * (fuzz_case.LONGEST_ERROR + 1)), "traceback"),
        (KeyError("x"), "traceback"),
        (None, "right"),
    ],
)
def test_what_a_damaged_bundle_says(
    error: Exception | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(bundle: Path, policy: bool) -> list[Any]:
        if error is not None:
            raise error
        return [[1]]

    monkeypatch.setattr(fuzz_case, "answers", answers)
    assert fuzz_case._outcome(tmp_path, [[1]], True)[0] == kind
    assert error is not None or fuzz_case._outcome(tmp_path, [[2]], True)[0] == "wrong"
