"""How many CPUs this process may use: physical cores, and the limit of its container or service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def allowed_cpus() -> list[int]:
    """The hardware threads that this process may use, by their numbers."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """How many physical cores this process may use; hardware threads if the system does not tell them apart."""
    siblings = {_read(CPUS / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed_cpus()}
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
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
