"""The thread pool of an ONNX Runtime session: each session has its own, so that loading a bundle changes nothing for
other sessions of the process, and two bundles may use different numbers of threads.

A pool's workers spin for a while after a run, waiting for the next one, and would take the cores from the other model's
pass: speculative decoding then takes up to twice the time. With `session.force_spinning_stop` they stop when their
session's run returns (docs/benchmarks.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ParameterError

MOST_PER_CPU = 8  # above one per core they only take turns; a bundle's costs may be of a host with more cores
CPUS = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def check_threads(threads: int) -> None:
    """Raises `ParameterError` for a number with which a pass would take minutes instead of milliseconds."""
    if threads < 0:
        raise ParameterError(f"threads is {threads}; it must be 0 (the engine's choice) or more")
    if threads > MOST_PER_CPU * (os.cpu_count() or 1):
        raise ParameterError(
            f"threads is {threads}, more than {MOST_PER_CPU} per CPU of this host; give 0 for the engine's choice"
        )


def configure(options: Any, threads: int) -> None:
    """Give `options` (a `SessionOptions`) a pool of `threads` threads; 0 for one per core within the CPU limit."""
    # Always a number: left to choose, ONNX Runtime pins its workers to cores, the same ones for every session.
    options.intra_op_num_threads = threads or max(1, int(min(physical_cores(), cpu_limit())))
    options.add_session_config_entry("session.force_spinning_stop", "1")


def physical_cores() -> int:
    """How many physical cores this process may use; hardware threads if the system does not tell them apart."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    siblings = {_read(CPUS / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed}
    return len(siblings)


def cpu_limit() -> float:
    """How many CPUs' time a container or a service may use (`--cpus`, `CPUQuota`), infinite without a limit.

    Beyond it the system stops all threads of the process until the next period: on half a CPU a pool of two took 2.4
    times as long as one thread, and a pool of eight 6 times.
    """
    return min(_limits(), default=float("inf"))


def _limits() -> Iterator[float]:
    """Those of its control groups and of the groups around them, in versions 1 and 2."""
    for line in _read(OWN_GROUPS).splitlines():
        _, controllers, own = line.split(":", 2)
        root = GROUPS / "cpu" if "cpu" in controllers.split(",") else GROUPS
        if controllers and root == GROUPS:
            continue
        place = root / own.strip("/")  # in a container it may be named as outside, where there is no such folder
        for folder in (place, *place.parents[: len(place.parts) - len(root.parts)]):
            quota = (
                _read(folder / "cpu.max")
                or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
            )
            used, _, period = quota.partition(" ")
            if used.isdecimal() and period.isdecimal():  # else `max`, -1, or nothing
                yield int(used) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
