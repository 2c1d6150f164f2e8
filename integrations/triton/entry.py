"""The file that Triton's Python backend runs: a model repository contains a copy of it as `model.py`.

The backend's interpreter ignores PYTHONPATH. If specexport is not installed there, the file `python_path` next to this
one lists folders of packages, one per line; they are searched first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATHS = Path(__file__).with_name("python_path")
if PATHS.exists():
    sys.path[:0] = PATHS.read_text(encoding="utf-8").splitlines()

try:
    import triton_python_backend_utils  # of Triton; needs numpy
    from specexport.integrations.triton.models import Model, load_model
except ImportError as error:
    raise ImportError(
        f"{error}; the interpreter is Python {sys.version.split()[0]} of {sys.prefix}, which ignores PYTHONPATH: "
        f"install 'specexport[onnxruntime]' there, or name the folder that has it in {PATHS}"
    ) from None


class TritonPythonModel:
    """The class and methods that the backend looks for by name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._model: Model = load_model(triton_python_backend_utils, args)

    def execute(self, requests: Sequence[Any]) -> Any:
        return self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
