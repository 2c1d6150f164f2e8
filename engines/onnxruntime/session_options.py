"""Options of ONNX Runtime's sessions on this host: threads, and exact products.

Each session has a thread pool of its own, so that loading a bundle changes nothing for other sessions of the process,
and two bundles may use different numbers of threads. A pool's workers spin for a while after a run, waiting for the
next one, and would take the cores from the other model's pass: speculative decoding then takes up to twice the time.
With `session.force_spinning_stop` they stop when their session's run returns (docs/internals/log.md).

Products of uint8 and int8 are exact, whatever the weights are. Without VNNI, ONNX Runtime's x86 kernels add
neighbouring products in 16 bits and saturate: 255 x 127 x 2 is more than 32767, 255 x 64 x 2 is not. VNNI and ARM's dot
products add in 32 bits. On hosts that saturate, ONNX Runtime can store such weights as uint8, whose products are exact
but slower (`kOrtSessionOptionsAvx2PrecisionMode`, `Avx2WeightS8ToU8Transformer`). It leaves weights between -64 and 64
as they are, and also weights that are not constants, such as those of experts, which a Gather selects; the exporter
always keeps the latter within 64. So every host computes the same integers, and bundles with larger weights are built
on hosts where they cost nothing.
"""

from __future__ import annotations

import platform
from pathlib import Path
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


CPUINFO = Path("/proc/cpuinfo")
X86 = ("x86_64", "amd64", "i386", "i686", "x86")
# As in ONNX Runtime's MLAS, kernels for AVX512 without VNNI take precedence over those for AVX-VNNI.
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def saturates(cpuinfo: str | None = None, machine: str | None = None) -> bool:
    """Whether kernels saturate on this host; True also if unknown, on an x86 whose features are not listed.

    cpuinfo: the text of /proc/cpuinfo, by default this host's. machine: as platform.machine() returns it, by default
    this host's.
    """
    if (machine or platform.machine()).lower() not in X86:
        return False
    flags = _flags(_read() if cpuinfo is None else cpuinfo)
    if flags >= AVX512:
        return "avx512_vnni" not in flags
    return "avx_vnni" not in flags


def keep_exact(options: Any) -> None:
    """Request the slower, exact products in `options` (a `SessionOptions`), if this host saturates."""
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")


def _flags(cpuinfo: str) -> set[str]:
    """The features that all processors have, since a pass may run on any of them."""
    found = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    return set.intersection(*found) if found else set()


def _read() -> str:
    try:
        return CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return ""
