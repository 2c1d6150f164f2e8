"""Whether ONNX Runtime is installed at all: one module, in several packages."""

from __future__ import annotations

import importlib.util

from ...errors import reason_of
from ..base import Availability


def not_importable(package: str) -> Availability | None:
    """Why onnxruntime cannot be imported, None if it can. package: the one that is wanted, called like its extra."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Availability(False, f"{package} is not installed", f"pip install 'specexport[{package}]'")
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:  # a shared library that is missing or built for another system
        why = reason_of(error)
        return Availability(False, f"onnxruntime is installed, but cannot be imported: {why}", "install it again")
    return None
