"""The package specexport-kernels (the folder `kernels/`): operators of our own that ONNX Runtime loads on the CPU."""

from __future__ import annotations

import os
from importlib import import_module

from ..base import Availability

PACKAGE = "specexport-kernels"
OLDEST_OPERATORS = 2  # the package's OPERATORS that graphs of this specexport need
INSTALL = "pip install ./kernels in a checkout of specexport, or its wheel"


def library() -> str | None:
    """The path for `register_custom_ops_library`, None where this host cannot run it: other graphs need none."""
    path: str | None = import_module("specexport_kernels").library() if availability().usable else None
    return path


def instruction_set() -> str | None:
    """Which one the operators run on here, None where this host cannot run them."""
    runs: str | None = import_module("specexport_kernels").instruction_set() if availability().usable else None
    return runs


def availability() -> Availability:
    """Whether this host can run graphs with the operators, and on which instruction set.

    The library itself is loaded, which takes less than a millisecond.
    """
    try:
        package = import_module("specexport_kernels")
    except ImportError:
        return Availability(False, f"{PACKAGE} is not installed", INSTALL)
    found: int = getattr(package, "OPERATORS", 0)  # 0: a folder that happens to have this name
    if found < OLDEST_OPERATORS:
        return Availability(
            False, f"{PACKAGE} has operators of version {found}, version {OLDEST_OPERATORS} or newer is needed", INSTALL
        )
    try:
        runs: str | None = package.instruction_set()
    except (OSError, AttributeError) as error:  # a library that is missing, damaged, or of another processor
        reason = str(error).partition("\n")[0]
        return Availability(False, f"{PACKAGE} is installed, but its library cannot be loaded: {reason}", INSTALL)
    wanted = os.environ.get("SPECEXPORT_KERNELS")
    if runs is None:
        return Availability(False, f"SPECEXPORT_KERNELS is {wanted!r}, which this host cannot run", "unset it")
    forced = ", as SPECEXPORT_KERNELS says" if wanted else ""
    return Availability(True, f"{PACKAGE} runs {runs} here{forced}, operators of version {found}")
