"""Memory that a build will need, looked up before it starts: a process that runs out of it is killed without a word."""

from __future__ import annotations

from pathlib import Path

from ..bundle import ELEMENT_BYTES, Precision
from ..errors import OutputError

# Python with torch, and the reference's activations.
BASE = 700_000_000
# The weights, in the precision they are traced in; and beside them, while they are quantized, those that are restored from few
# bits, in fp32, and the few bits themselves. Measured: benchmarks/build_memory.py.
RESTORED_BYTES = 4 + 1
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def require_memory(parameters: int, precision: Precision, quantized: bool) -> None:
    """Raises `OutputError` where exporting a model of `parameters` weights needs more memory than is free; unknown is enough."""
    needed = BASE + parameters * (ELEMENT_BYTES[precision] + RESTORED_BYTES * quantized)
    free = available()
    if free is not None and needed > free:
        remedy = "without --precision int8, int4 or fp8, or on a larger host" if quantized else "with --precision fp16 or on a larger host"
        raise OutputError(
            f"exporting {parameters / 1e9:.1f} billion weights needs about {needed / 1e9:.1f} GB of memory, "
            f"{free / 1e9:.1f} GB are free; close what else runs, or build {remedy}"
        )


def available() -> int | None:
    """Bytes that this process can still get, without swapping: of the host, and of its control group where that is less."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):
        return None
    try:
        statistics = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        files = int(statistics["inactive_file"]) + int(statistics["active_file"])  # what was read of files is given back when needed
        return min(free, int((GROUP / "memory.max").read_text()) - int((GROUP / "memory.current").read_text()) + files)
    except (OSError, LookupError, ValueError):  # no group, or one without a limit
        return free
