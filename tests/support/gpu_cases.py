"""Work that `scripts/gpu_check` does in a process of its own, as it may go wrong there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from gpucheck.finding import Finding
from gpucheck.report import Outcome

Tell = Callable[[Any], None]


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
