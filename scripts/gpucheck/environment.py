"""The hardware and software that a measurement was made with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specexport.engines.cuda.driver import Gpu
from specexport.version import VERSION

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("numpy", "torch", "transformers", "tokenizers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu"),
    *("tensorrt", "tensorrt-rtx", "tensorrt-lean", "cuda-bindings", "cuda-core"),
)
CLOCKS = (
    "driver_version",
    "pstate",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


def environment(gpu: Gpu) -> dict[str, Any]:
    return {
        "gpu": {
            "name": gpu.name,
            "compute_capability": ".".join(map(str, gpu.compute_capability)),
            "memory_bytes": gpu.memory,
            "driver_serves_cuda": gpu.driver,
        },
        "host": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": _cores(),
            "python": platform.python_version(),
        },
        "packages": {name: found for name in PACKAGES if (found := _installed(name))},
        "specexport": {"version": VERSION, "commit": _commit()},
    }


def clocks() -> dict[str, str]:
    """What nvidia-smi reports now, in its own units; empty if it cannot (on Jetson, in some containers)."""
    query = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    values = [value.strip() for value in _output(query).split(",")]
    return dict(zip(CLOCKS, values, strict=True)) if len(values) == len(CLOCKS) else {}


def _commit() -> str:
    """The commit, followed by `+` if files were changed; empty outside of a checkout."""
    commit = _output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    return commit + "+" * bool(commit and _output(["git", "-C", str(ROOT), "status", "--porcelain"]))


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, encoding="utf-8"
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
