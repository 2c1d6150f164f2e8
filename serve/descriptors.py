"""How many connections `ulimit -n` leaves room for."""

from __future__ import annotations

import resource
from pathlib import Path

from ..errors import EngineError

SPARE_CONNECTIONS = 16  # besides two for each open request: a keep-alive and a health check
SPARE_FILES = 24  # for libraries, and for connections that are not counted yet, or closed and not gone


def connections_of(requests: int) -> int:
    """How many connections a server with so many open requests holds."""
    return 2 * requests + SPARE_CONNECTIONS


def affordable(requests: int) -> int:
    """How many requests, `requests` at most, can be open at once. The soft limit is raised as far as that needs.

    Raises `EngineError` if there is no room for any.
    """
    taken = _open_files() + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = taken + connections_of(requests)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return requests
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if raised > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):  # a system's own limit
            pass
    found = (soft - taken - SPARE_CONNECTIONS) // 2
    if found < 1:
        least = taken + connections_of(1)
        raise EngineError(f"this process may open {soft} files; a server needs {least}: raise the limit (ulimit -n)")
    return min(found, requests)


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
