"""Whether products of uint8 and int8 are exact on this host, whatever the weights are.

Without VNNI, ONNX Runtime's x86 kernels add neighbouring products in 16 bits and saturate: 255 x 127 x 2 is more than
32767, 255 x 64 x 2 is not. VNNI, and the dot products of ARM, add in 32 bits. On hosts that saturate ONNX Runtime can
store such weights as uint8, whose products are exact and slower (`kOrtSessionOptionsAvx2PrecisionMode`,
`Avx2WeightS8ToU8Transformer`); it leaves weights within -64 and 64 as they are, and all that are no constants, as those
of experts, which a Gather picks: they are made within 64 always. So every host computes the same integers, and bundles
with larger weights are made where they cost nothing.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
X86 = ("x86_64", "amd64", "i386", "i686", "x86")
# As ONNX Runtime's MLAS decides: kernels for AVX512 without VNNI displace those for AVX-VNNI.
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def saturates(cpuinfo: str | None = None, machine: str | None = None) -> bool:
    """True also where it is not known: an x86 without a list of its features.

    cpuinfo: the text of /proc/cpuinfo, by default this host's. machine: as platform.machine() gives it.
    """
    if (machine or platform.machine()).lower() not in X86:
        return False
    flags = _flags(_read() if cpuinfo is None else cpuinfo)
    if flags >= AVX512:
        return "avx512_vnni" not in flags
    return "avx_vnni" not in flags


def keep_exact(options: Any) -> None:
    """Tell `options` (a `SessionOptions`) of a host that saturates. Elsewhere the slower products would only cost."""
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")


def _flags(cpuinfo: str) -> set[str]:
    """Of the processor with the fewest: a pass may run on any."""
    found = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    return set.intersection(*found) if found else set()


def _read() -> str:
    try:
        return CPUINFO.read_text()
    except OSError:
        return ""
