"""Runs work in forks of this process, which has imported what they need and started no thread: so each fork starts at
once, in a clean state, and may be killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]
PATIENCE = 900.0  # seconds for work that is not killed; ten are enough on a quiet machine
ERROR = "Error: "  # the start of an error message, click's and ours


@dataclass(frozen=True)
class Ended:
    """code: of the exit, negative for a signal. told: the last lines of its stderr."""

    code: int
    seconds: float
    told: str

    @property
    def fine(self) -> bool:
        return self.code == 0

    @property
    def refused(self) -> bool:
        """Whether it ended with a one-line error after its progress messages, like for a user's mistake."""
        return self.code == 1 and one_line(self.told)

    @property
    def in_a_line(self) -> str:
        """The exit code and the end of the log, in one line."""
        return f"code {self.code}: {last_words(self.told)}"


def one_line(told: str) -> bool:
    """Whether the log ends with an error, which is its only one and has one line."""
    before, error, line = told.rstrip("\n").rpartition(ERROR)
    return bool(error) and "\n" not in line and ERROR not in before and "Traceback" not in before


def last_words(told: str, most: int = 300) -> str:
    """The end of a log, in one line."""
    return " | ".join(told.split("\n")).strip(" |")[-most:]


def run(work: Work, log: Path, kill_after: float | None = None) -> Ended:
    """Run `work` in a fork. Exit code 0, 1 with one line for a `SpecExportError`, 2 with a traceback for any other."""
    begun, child = time.monotonic(), start(work, log)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() - begun > PATIENCE:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return Ended(
        os.waitstatus_to_exitcode(status),
        time.monotonic() - begun,
        log.read_text(errors="replace", encoding="utf-8")[-2000:],
    )


def start(work: Work, log: Path) -> int:
    """Start `work` in a fork without waiting for it; returns its process id."""
    sys.stdout.flush()  # otherwise the fork would write the buffer too
    child = os.fork()
    if not child:
        _in_child(work, log)
    return child


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(work: Work, log: Path) -> None:
    code = 2
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = _code(work)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _code(work: Work) -> int:
    from specexport import SpecExportError

    try:
        work()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except SpecExportError as error:
        print(f"{ERROR}{error}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2
    return 0
