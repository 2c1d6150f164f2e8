"""The confidence head of a draft on ONNX Runtime: its weights, an input of the graph, and the graph's two outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle import CONFIDENCE, FEATURES, HEAD
from ...errors import EngineError

Floats = NDArray[np.float32]


def head_shapes(size: int, rows_name: str) -> dict[str, list[int | str]]:
    """Shapes by name, all float32, of the additional inputs and outputs of a graph with a head of `size`; none if 0."""
    return {HEAD: [size + 1], FEATURES: [1, rows_name, size], CONFIDENCE: [1, rows_name]} if size else {}


class OrtHead:
    """Implements `Head`, with arrays of numpy, bound once per width. rows: of the last pass; the decoder sets it."""

    def __init__(self, size: int, widest_step: int) -> None:
        self.size = size
        self.rows = 1
        self._weights = np.zeros(size + 1, np.float32)
        self._features = np.zeros((widest_step, size), np.float32)
        self._confidence = np.zeros(widest_step, np.float32)

    def bind(self, io: Any, value: Any, rows: int) -> None:
        """Bind the head of passes with `rows` rows. value: makes an OrtValue that aliases an array."""
        io.bind_ortvalue_input(HEAD, value(self._weights))
        io.bind_ortvalue_output(FEATURES, value(self._features[None, :rows]))
        io.bind_ortvalue_output(CONFIDENCE, value(self._confidence[None, :rows]))

    def set_weights(self, weights: Floats) -> None:
        self._weights[:] = checked(weights, self.size)

    def confidence(self, row: int = -1) -> float:
        return float(self._confidence[: self.rows][row])

    def features(self) -> Floats:
        return self._features[: self.rows]


def checked(weights: Floats, size: int) -> Floats:
    """`weights` as contiguous float32, for copies to a device. Raises `EngineError` for a shape but `[size + 1]`."""
    if weights.shape != (size + 1,):
        raise EngineError(
            f"the confidence head takes {size + 1} weights, the bias last, but got {list(weights.shape)}; "
            "calibrate again"
        )
    return np.ascontiguousarray(weights, np.float32)
