"""Work in forks of this process, which has imported what they need and begun no thread: so each starts at once, in a
state that nothing before it has touched, and may be killed.
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
PATIENCE = 300.0  # seconds for work that is not killed


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
        """Whether it ended with one line, as a user's mistake does."""
        return self.code == 1 and "Traceback" not in self.told


def run(work: Work, log: Path, kill_after: float | None = None) -> Ended:
    """The end of `work` in a fork: 0, 1 with one line for an error of ours, 2 with a traceback for any other."""
    start, child = time.monotonic(), os.fork()
    if not child:
        _in_child(work, log)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() - start > PATIENCE:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return Ended(os.waitstatus_to_exitcode(status), time.monotonic() - start, log.read_text(errors="replace")[-2000:])


def start(work: Work, log: Path) -> int:
    """The process of a fork that is not waited for."""
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
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2
    return 0
