"""Locks that the operating system frees when their process ends, however it ends: flock(2), on Linux and macOS."""

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
    """Raises `OutputError` on a system that has none, as Windows."""
    if fcntl is None:
        raise OutputError(
            f"the system {sys.platform} has no locks that end with their process; "
            "build, compile, calibrate and bench on Linux or macOS, which may be WSL"
        )


def lock(file: int | FileIO) -> None:
    """Hold an open file or folder until it is closed.

    Raises `BlockingIOError` when another holds it, another OSError where the file system has no locks, and
    `OutputError` where the system has none.
    """
    require_locks()
    assert fcntl is not None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
