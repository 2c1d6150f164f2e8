"""The thread pool of an ONNX Runtime session: each session has its own, so that loading a bundle changes nothing for
other sessions of the process, and two bundles may use different numbers of threads.

A pool's workers spin for a while after a run, waiting for the next one, and would take the cores from the other model's
pass: speculative decoding then takes up to twice the time. With `session.force_spinning_stop` they stop when their
session's run returns (docs/benchmarks.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CPUS = Path("/sys/devices/system/cpu")


def configure(options: Any, threads: int) -> None:
    """Give `options` (a `SessionOptions`) a pool of `threads` threads; 0 for one per physical core."""
    # Always a number: left to choose, ONNX Runtime pins its workers to cores, the same ones for every session.
    options.intra_op_num_threads = threads or physical_cores()
    options.add_session_config_entry("session.force_spinning_stop", "1")


def physical_cores() -> int:
    """How many physical cores this process may use; hardware threads if the system does not tell them apart."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    siblings = {_read(CPUS / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed}
    return len(siblings)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
