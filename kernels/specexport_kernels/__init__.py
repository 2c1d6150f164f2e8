"""The library of custom operators that ONNX Runtime loads: `options.register_custom_ops_library(library())`."""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["OPERATORS", "instruction_set", "library"]

# Raised with each new operator: a graph that needs a higher number needs a newer package. The domain stays version 1.
OPERATORS = 2


def library() -> str:
    """The path of the shared library."""
    return str(Path(__file__).with_name("specexport_kernels.so"))


def instruction_set() -> str | None:
    """What this host runs, such as `avx512_vnni`; None where SPECEXPORT_KERNELS names a set that it cannot run."""
    name = ctypes.CDLL(library()).specexport_kernels_set
    name.restype = ctypes.c_char_p
    best: bytes | None = name()
    return best.decode() if best is not None else None
