"""Memory that is free, and the refusal of what needs more."""

from __future__ import annotations

from pathlib import Path

from ..errors import OutputError

# Python with torch, and the reference's activations.
BASE = 700_000_000
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def require_free(needed: float, what: str, remedy: str) -> None:
    """Raises `OutputError` where fewer than `needed` bytes are free; if that is unknown, the check passes.

    remedy: what completes "build ...".
    """
    free = available()
    if free is not None and needed > free:
        raise OutputError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB are free; "
            f"close other programs, or build {remedy}",
            code="out_of_memory",
        )


def available() -> int | None:
    """Bytes that this process can still get without swapping: of the host, or of its control group if less."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):
        return None
    try:
        statistics = dict(line.split() for line in (GROUP / "memory.stat").read_text(encoding="utf-8").splitlines())
        # what was read of files is given back when needed
        files = int(statistics["inactive_file"]) + int(statistics["active_file"])
        return min(
            free,
            int((GROUP / "memory.max").read_text(encoding="utf-8"))
            - int((GROUP / "memory.current").read_text(encoding="utf-8"))
            + files,
        )
    except (OSError, LookupError, ValueError):  # no group, or one without a limit
        return free
