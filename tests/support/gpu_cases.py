"""Work that `scripts/gpu_check` does in a process of its own, as it may go wrong there."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpucheck.finding import Finding
from gpucheck.report import Outcome
from specexport.errors import BundleError

Tell = Callable[[Any], None]


def doubled(tell: Tell, number: int) -> int:
    tell(f"doubling {number}")
    tell(os.getpid())
    return 2 * number


def refused(tell: Tell) -> None:
    raise BundleError("there is no such bundle; build it")


def mistaken(tell: Tell) -> None:
    raise ValueError("of ours\nand more")


def without_package(tell: Tell) -> None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def exits(tell: Tell) -> None:
    os._exit(3)


def hangs(tell: Tell) -> None:
    tell("waiting")
    time.sleep(600)


def crashes(tell: Tell) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def crashing_case(tell: Tell, case: Any, outcome: Outcome) -> None:
    """A finding, and then a crash in the next step; of the engine `tensorrt` only."""
    outcome.step = "parity"
    tell(("  parity", outcome))
    outcome.findings.append(Finding("parity", True, "1e-5 off"))
    tell(("  proved parity", outcome))
    outcome.step = "rules"
    tell(("  rules", outcome))
    if case.engine == "tensorrt":
        crashes(tell)
    outcome.finished = True
    tell(("  finished", outcome))


def hanging_case(tell: Tell, case: Any, outcome: Outcome) -> None:
    outcome.step = "load"
    tell(("  load", outcome))
    time.sleep(600)
