"""The hardware and software that a measurement was made with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy
import onnxruntime


def describe_hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    extensions = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}, numpy {numpy.__version__}"
    return f"{name}, {cores} cores, {' '.join(extensions)}; {versions}"
