"""What Triton's Python backend runs: a model repository has a copy of this file as `model.py`.

The backend's interpreter ignores PYTHONPATH. Where it has no specexport of its own, the file `python_path` beside this
one names folders of packages, one a line; they come first.
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
    from specexport.integrations.triton.load import Model, load_model
except ImportError as error:
    raise ImportError(
        f"{error}; the interpreter is Python {sys.version.split()[0]} of {sys.prefix}, which ignores PYTHONPATH: "
        f"install 'specexport[onnxruntime]' there, or name the folder that has it in {PATHS}"
    ) from None


class TritonPythonModel:
    """By the names that the backend looks for."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._model: Model = load_model(triton_python_backend_utils, args)

    def execute(self, requests: Sequence[Any]) -> Any:
        return self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
