"""What `build` needs in addition to the runtime."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from ..engines.versions import version_numbers

EXPORTER_EXTRA = "pip install 'specexport[export]'"
OLDEST_PYTHON = (3, 11)
NO_DOCSTRINGS = 2  # as -OO and PYTHONOPTIMIZE=2 set it
# The extra `export`, as pyproject.toml has it; a test compares the two.
PACKAGES = {
    "torch": ">=2.10,<3",
    "transformers": ">=5.0,<6",
    "safetensors": ">=0.5",
    "onnx": ">=1.20",
    "onnx-ir": ">=1.0",
    "onnxscript": ">=0.6",
    "onnxruntime": ">=1.24",
}


def lacking() -> tuple[str, str] | None:
    """What keeps this host from building and what to do about it, or None if nothing does."""
    if sys.version_info < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        found = f"building needs Python {needed} or newer, this is {platform.python_version()}"
        return found, "build where there is one and copy the bundle here, where it runs"
    if sys.flags.optimize >= NO_DOCSTRINGS:
        found = "building needs docstrings, which transformers reads, and this Python runs without them"
        return found, "leave out -OO, or unset PYTHONOPTIMIZE (1 and -O are allowed)"
    wrong = [f"{name}{wanted} ({found})" for name, wanted in PACKAGES.items() if (found := _unfit(name, wanted))]
    return (f"building needs {', '.join(wrong)}", EXPORTER_EXTRA) if wrong else None


def _unfit(name: str, wanted: str) -> str:
    """What is there instead of a version within `>=floor,<ceiling`, or nothing."""
    if find_spec(name.replace("-", "_")) is None:
        return "not installed"
    try:
        found = version(name)
    except PackageNotFoundError:  # installed under another name, as onnxruntime-gpu is
        return ""
    floor, _, ceiling = wanted.removeprefix(">=").partition(",<")
    fits = version_numbers(floor) <= version_numbers(found) and (
        not ceiling or version_numbers(found) < version_numbers(ceiling)
    )
    return "" if fits else f"found {found}"
