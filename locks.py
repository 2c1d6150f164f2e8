"""Locks that the operating system releases when their process ends, however it ends: flock(2), on Linux and macOS."""

from __future__ import annotations

import sys
from io import FileIO
from types import ModuleType

from .errors import OutputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None


def require_locks() -> None:
    """Raises `OutputError` on a system without such locks, e.g. Windows."""
    if fcntl is None:
        raise OutputError(
            f"the system {sys.platform} has no locks that end with their process; "
            "build, compile, calibrate and bench on Linux or macOS, which may be WSL"
        )


def lock(file: int | FileIO) -> None:
    """Lock an open file or folder exclusively, without waiting; closing it releases the lock.

    Raises `BlockingIOError` if it is already locked, another OSError if the file system has no locks, and
    `OutputError` if the system has none.
    """
    require_locks()
    assert fcntl is not None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
