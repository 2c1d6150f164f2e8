"""benchmarks/reliability: what its parts count as a fault, with runs that have one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specexport.errors import BundleError

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from reliability import disk, forks, fuzz_case, kills
from reliability.disk import REFUSED, both_judged, judged
from reliability.forks import Ended, last_words, one_line
from reliability.kills import Trial

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FINE = Ended(0, 2.0, "")
KILLED = Ended(-signal.SIGKILL, 0.1, "")
REFUSAL = Ended(1, 0.1, "export target\nError: the disk is full; nothing was kept\n")
TRACEBACK = Ended(2, 0.1, "Traceback (most recent call last):\nKeyError: 'x'\n")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("Error: no\n", True),
        ("a stage, 2 s\nError: no", True),
        ("Error: no\nand more\n", False),
        ("Error: no\nError: no\n", False),
        ("Traceback (most recent call last):\nError: no\n", False),
        ("killed\n", False),
        ("", False),
    ],
)
def test_an_error_is_one_line(told: str, expected: bool) -> None:
    assert one_line(told) == expected
    assert Ended(1, 0.0, told).refused == expected
    assert not Ended(2, 0.0, told).refused


def test_a_finding_is_one_line_that_ends_as_the_log_does() -> None:
    told = last_words("first\n" * 200 + "KeyError: 'x'\n")
    assert told.endswith("first | KeyError: 'x'")
    assert len(told) == 300
    assert "\n" not in TRACEBACK.in_a_line


FORKS = """
import os, signal, sys, time
from pathlib import Path
from specexport.errors import OutputError
from reliability import forks

def refuse(told): raise OutputError(told)
def leave(code): raise SystemExit(code)

work = {
    "fine": lambda: None,
    "one line": lambda: refuse("no room"),
    "several": lambda: print("Error: no\\nroom", file=sys.stderr) or leave(1),
    "bug": lambda: {}["x"],
    "click": lambda: leave(1),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}
for name, one in work.items():
    done = forks.run(one, Path(sys.argv[1]))
    print(name, done.code, done.fine, done.refused, sep=",")
done = forks.run(lambda: time.sleep(60), Path(sys.argv[1]), 0.05)
print("killed", done.code, done.fine, done.refused, sep=",")
"""


def test_how_forks_end(tmp_path: Path) -> None:
    """In a process without threads, as the parts are."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "log")],
        env={"PYTHONPATH": f"{BENCHMARKS}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "fine,0,True,False",
        "one line,1,False,True",
        "several,1,False,False",
        "bug,2,False,False",
        "click,1,False,False",
        f"crash,{-signal.SIGSEGV},False,False",
        f"killed,{-signal.SIGKILL},False,False",
    ]


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


def test_kills_that_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = list[str]()
    found = went(monkeypatch, check=lambda: checks.append("kill"), ended=lambda: checks.append("whole"))
    assert found == {
        "what": "a build, 2.0 s",
        "times": 9,
        "found": "3 runs behind kills came to their end, 0 faults",
        "wrong": [],
    }
    assert checks == ["whole", *["kill"] * 7, "whole", *["kill"] * 2, "whole"]


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
    ("done", "left", "expected", "fault"),
    [
        (FINE, ["out.bundle"], "built", False),
        (FINE, [], "built", True),
        (FINE, [".out.bundle.tmp-abcdefgh", "out.bundle"], "built", True),
        (REFUSAL, [], REFUSED, False),
        (REFUSAL, ["out.bundle"], REFUSED, True),
        (REFUSAL, [".out.bundle.tmp-abcdefgh"], REFUSED, True),
        (TRACEBACK, [], "neither", True),
        (Ended(-signal.SIGBUS, 1.0, ""), [], "neither", True),
    ],
)
def test_builds_on_a_small_disk(done: Ended, left: list[str], expected: str, fault: bool) -> None:
    kind, told = judged(done, left)
    assert kind == expected
    assert bool(told) == fault


def test_two_builds_into_one_output() -> None:
    exists = "Error: out.bundle exists; choose another --output\n"
    assert both_judged((0, 0), ["", ""], []) == ""
    assert both_judged((1, 0), [exists, ""], []) == ""
    assert both_judged((1, 1), [exists, exists], [])
    assert both_judged((0, 0), ["", ""], [".out.bundle.tmp-abcdefgh"])
    assert both_judged((0, 1), ["", TRACEBACK.told], [])
    assert both_judged((0, 2), ["", TRACEBACK.told], [])


def test_a_finding_of_any_row_fails_the_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [disk.row("a", 1, "", [])]

    class Pool:
        def __init__(self, *given: int, **options: int) -> None:
            pass

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

        def apply(self, work: object, given: object) -> list[disk.Row]:
            return [dict(row) for row in rows]

    for part in (disk, kills):
        monkeypatch.setattr(part.multiprocessing, "get_context", lambda kind: type("Context", (), {"Pool": Pool}))
    for name in ("_replaced", "_read_only_cache"):
        monkeypatch.setattr(disk, name, lambda bundle: disk.row("b", 1, "", []))
    monkeypatch.setattr(kills, "_servers", lambda *given: disk.row("serve", 1, "", []))
    assert disk.disk(tmp_path, 1, 0)["passed"]
    assert kills.kills(tmp_path, 1, 0)["passed"]
    rows[0]["wrong"] = ["lost"]
    for found in (disk.disk(tmp_path, 1, 0), kills.kills(tmp_path, 1, 0)):
        assert (found["passed"], found["wrong"]) == (False, ["a: lost"])


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


JUDGES = """
import json, os, signal, sys, time
from pathlib import Path
from reliability import fuzz_case

ways = {
    "right": lambda: [[1]],
    "wrong": lambda: [[2]],
    "hang": lambda: time.sleep(60),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "silent": lambda: os._exit(0),
}
found = {}
for name, way in ways.items():
    fuzz_case.answers = lambda bundle, policy: way()
    found[name] = fuzz_case.judge(Path("none"), [[1]], True, 0.3 if name == "hang" else 60).kind
print(json.dumps(found))
"""


def test_bundles_that_crash_or_hang(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JUDGES)],
        env={"PYTHONPATH": f"{BENCHMARKS}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {"right": "right", "wrong": "wrong", "hang": "hang", "crash": "crash", "silent": "crash"}
    assert json.loads(done.stdout) == expected
