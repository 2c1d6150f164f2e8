"""The thread pool of an ONNX Runtime session: each session has its own, so that loading a bundle changes nothing for
other sessions of the process, and two bundles may use different numbers of threads.

A pool's workers spin for a while after a run, waiting for the next one, and would take the cores from the other model's
pass: speculative decoding then takes up to twice the time. With `session.force_spinning_stop` they stop when their
session's run returns (docs/benchmarks.md).
"""

from __future__ import annotations

from typing import Any

from ...errors import ParameterError
from ..cpus import allowed_cpus, cpu_limit, physical_cores

MAX_PER_CPU = 8  # above one per core they only take turns; a bundle's costs may be of a host with more cores


def check_threads(threads: int) -> None:
    """Raises `ParameterError` for a number with which a pass would take minutes instead of milliseconds."""
    if threads < 0:
        raise ParameterError(f"threads is {threads}; it must be 0 (the engine's choice) or more", "threads")
    most = MAX_PER_CPU * len(allowed_cpus())
    if threads > most:
        raise ParameterError(
            f"threads is {threads}; it must be at most {most} here, or 0 for the engine's choice", "threads"
        )


def configure(options: Any, threads: int) -> None:
    """Give `options` (a `SessionOptions`) a pool of `threads` threads; 0 for one per core within the CPU limit."""
    # Always a number: left to choose, ONNX Runtime pins its workers to cores, the same ones for every session.
    options.intra_op_num_threads = threads or max(1, int(min(physical_cores(), cpu_limit())))
    options.add_session_config_entry("session.force_spinning_stop", "1")
