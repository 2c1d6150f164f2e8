"""Loads graphs on the CPU: as ONNX Runtime sessions, and graphs without a cache as functions of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import EngineError
from ..base import Arrays
from .graph_check import still_open
from .pool import configure
from .products import keep_exact

if TYPE_CHECKING:
    import onnxruntime as ort

# It changes the layout of convolutions, which language models do not have; on some fp16 graphs onnxruntime 1.31 crashes
# while it looks for them.
UNUSED_OPTIMIZERS = ["NchwcTransformer"]


def open_graph(path: Path, threads: int = 0) -> OrtGraph:
    """Open the graph of a verification rule, for proofs; the loop on the CPU uses the rules' numpy implementation."""
    return OrtGraph(path, open_session(path, threads))


class OrtGraph:
    """A graph without a cache. Implements `RunGraph`."""

    def __init__(self, path: Path, session: ort.InferenceSession) -> None:
        self._path = path
        self._session: ort.InferenceSession | None = session
        self._names = [output.name for output in session.get_outputs()]

    def __call__(self, arrays: Arrays) -> Arrays:
        session = still_open(self._session, self._path)
        return dict(zip(self._names, session.run(self._names, dict(arrays)), strict=True))

    def close(self) -> None:
        self._session = None


def open_session(path: Path, threads: int) -> ort.InferenceSession:
    """Load the graph at `path` on the CPU. threads: 0 for one per physical core. Raises `EngineError`."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    configure(options, threads)
    keep_exact(options)
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=UNUSED_OPTIMIZERS
        )
    except Exception as error:  # onnxruntime raises its own types straight from C++
        raise EngineError(f"ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}") from None
