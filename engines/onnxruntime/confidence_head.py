"""The confidence head of a draft on ONNX Runtime: its weights, an input of the graph, and the graph's two outputs.

`OrtHead` (CPU) and `OrtCudaHead` implement `Head`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineError

Floats = NDArray[np.float32]
WEIGHTS, FEATURES, CONFIDENCE = NAMES = ("head", "features", "confidence")


def head_shapes(size: int, rows_name: str) -> dict[str, list[int | str]]:
    """Shapes by name, all float32, of the additional inputs and outputs of a graph with a head of `size`; none if 0."""
    return {WEIGHTS: [size + 1], FEATURES: [1, rows_name, size], CONFIDENCE: [1, rows_name]} if size else {}


class OrtHead:
    """A head whose arrays are numpy's, bound once per width. rows: those of the last pass; the decoder sets it."""

    def __init__(self, size: int, widest_step: int) -> None:
        self.size = size
        self.rows = 1
        self._weights = np.zeros(size + 1, np.float32)
        self._features = np.zeros((widest_step, size), np.float32)
        self._confidence = np.zeros(widest_step, np.float32)

    def bind(self, io: Any, value: Any, rows: int) -> None:
        """Bind the head of passes with `rows` rows. value: makes an OrtValue that aliases an array."""
        io.bind_ortvalue_input(WEIGHTS, value(self._weights))
        io.bind_ortvalue_output(FEATURES, value(self._features[None, :rows]))
        io.bind_ortvalue_output(CONFIDENCE, value(self._confidence[None, :rows]))

    def set_weights(self, weights: Floats) -> None:
        self._weights[:] = checked(weights, self.size)

    def confidence(self, row: int = -1) -> float:
        return float(self._confidence[: self.rows][row])

    def features(self) -> Floats:
        return self._features[: self.rows]


@dataclass(frozen=True)
class _Returned:
    """One width's outputs: the values that the device writes, and arrays of the host, `[1, rows, F]` and `[1, rows]`,
    with the OrtValues that alias them.
    """

    device: tuple[Any, Any]
    arrays: tuple[Floats, Floats]
    values: tuple[Any, Any]


class OrtCudaHead:
    """A head on a device, whose outputs are copied to the host on request. width: that of the last step; the decoder
    sets it.

    ort: the module onnxruntime. place: copies an array to the device.
    """

    def __init__(self, size: int, ort: Any, place: Any) -> None:
        self.size = size
        self.width = 0
        self._ort, self._place = ort, place
        self._weights = place(np.zeros(size + 1, np.float32))
        self._returned: dict[int, _Returned] = {}

    def bind(self, io: Any, width: int, rows: int) -> None:
        arrays = np.zeros((1, rows, self.size), np.float32), np.zeros((1, rows), np.float32)
        features, confidence = (self._place(np.zeros_like(array)) for array in arrays)
        values = self._ort.OrtValue.ortvalue_from_numpy(arrays[0]), self._ort.OrtValue.ortvalue_from_numpy(arrays[1])
        self._returned[width] = _Returned((features, confidence), arrays, values)
        io.bind_ortvalue_input(WEIGHTS, self._weights)
        io.bind_ortvalue_output(FEATURES, features)
        io.bind_ortvalue_output(CONFIDENCE, confidence)

    def set_weights(self, weights: Floats) -> None:
        self._weights.update_inplace(checked(weights, self.size))

    def confidence(self, row: int = -1) -> float:
        return float(self._read(1)[0, row])

    def features(self) -> Floats:
        features: Floats = self._read(0)[0]
        return features

    def close(self) -> None:
        """Release the memory on the device."""
        self._returned.clear()
        self._weights = None

    def _read(self, output_index: int) -> Floats:
        returned = self._returned[self.width]
        returned.values[output_index].update_inplace(returned.device[output_index])
        return returned.arrays[output_index]


def checked(weights: Floats, size: int) -> Floats:
    """`weights` as contiguous float32, for copies to a device. Raises `EngineError` for a shape but `[size + 1]`."""
    if weights.shape != (size + 1,):
        raise EngineError(
            f"the confidence head takes {size + 1} weights, the bias last, but got {list(weights.shape)}; "
            "calibrate again"
        )
    return np.ascontiguousarray(weights, np.float32)
