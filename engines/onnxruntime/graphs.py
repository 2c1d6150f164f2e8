"""Loads graphs on the CPU, as ONNX Runtime sessions or as functions of arrays, and checks them against the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BundleError, EngineError
from ..base import Arrays
from .kernels import library
from .session_options import configure, keep_exact

if TYPE_CHECKING:
    import onnxruntime as ort

# Of graphs that it runs, the fastest first.
DIALECTS = ("kernels", "ort")
# It changes the layout of convolutions, which language models do not have; on some fp16 graphs onnxruntime 1.31 crashes
# while it looks for them.
UNUSED_OPTIMIZERS = ["NchwcTransformer"]


def open_graph(path: Path, threads: int = 0) -> OrtGraph:
    """Open a graph without a cache, for proofs; the loop on the CPU uses the numpy implementation of the rules."""
    return OrtGraph(path, open_session(path, threads))


class OrtGraph:
    """A graph without a cache. Implements `RunGraph`."""

    def __init__(self, path: Path, session: ort.InferenceSession) -> None:
        self._path = path
        self._session: ort.InferenceSession | None = session
        self.names = [output.name for output in session.get_outputs()]

    def __call__(self, arrays: Arrays) -> Arrays:
        session = still_open(self._session, self._path)
        return dict(zip(self.names, session.run(self.names, dict(arrays)), strict=True))

    def check(self, expected: Mapping[str, Signature | None]) -> None:
        """As `check_graph`."""
        check_graph(self._path, still_open(self._session, self._path), expected)

    def close(self) -> None:
        self._session = None


def open_session(path: Path, threads: int) -> ort.InferenceSession:
    """Load the graph at `path` on the CPU. threads: 0 for one per core within the CPU limit. Raises `EngineError`.

    QuantizeLinear and DequantizeLinear of TensorRT's graphs, which are proved here, are not fused with the products
    around them: that would saturate in 16 bits on x86 without VNNI, round activations that the graph does not round
    (int4), and fail beside exact products (ONNX Runtime 1.32 makes one zero point for a weight with many scales).
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    configure(options, threads)
    keep_exact(options)
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        if (kernels := library()) is not None:
            options.register_custom_ops_library(kernels)
        return ort.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=UNUSED_OPTIMIZERS
        )
    except Exception as error:  # onnxruntime raises its own types straight from C++
        raise EngineError(f"ONNX Runtime cannot load {path}: {str(error).splitlines()[0]}") from None


T = TypeVar("T")

# ONNX Runtime's name of an element type, and a shape; a size is None if the manifest does not state it.
Signature = tuple[str, Sequence[int | str | None]]


def check_graph(path: Path, session: Any, expected: Mapping[str, Signature | None]) -> None:
    """Check the graph of an `InferenceSession`. expected: signatures by the name of an input or output, None if only
    the name matters. Raises `BundleError`.
    """
    actual = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
    again = "build the bundle again"
    if names := actual.keys() ^ expected.keys():
        raise BundleError(
            f"{path}: the inputs and outputs {', '.join(sorted(names))} do not match the manifest; {again}"
        )
    for name, signature in expected.items():
        if signature is None:
            continue
        kind, shape = signature
        there = actual[name]
        fits = len(there.shape) == len(shape) and all(
            size is None or size == length for size, length in zip(shape, there.shape, strict=True)
        )
        if there.type != kind or not fits:
            said = [length if size is None else size for size, length in zip(shape, there.shape, strict=False)]
            raise BundleError(
                f"{path}: {name} is a {there.type} {there.shape}, the manifest says {kind} {said}; {again}"
            )


def still_open(session: T | None, path: Path) -> T:
    """The session of the graph at `path`. Raises `EngineError` if it is None, because it was closed."""
    if session is None:
        raise EngineError(f"{path} was closed; load the bundle again")
    return session
