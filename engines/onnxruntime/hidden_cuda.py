"""Hidden states on ONNX Runtime's CUDA provider: buffers on the device by width, and what the host holds of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...bundle import FEEDBACK, FUSED, HIDDEN, Contract, Reads
from ..base import RunGraph

Floats = NDArray[np.float32]
# Copies an array to the device, as an OrtValue.
Place = Callable[[Floats], Any]


class _Returned(NamedTuple):
    """An output `[1, rows, width]`: on the device, an array of the host, and the OrtValue that aliases it."""

    device: Any
    array: Floats
    value: Any

    @classmethod
    def of(cls, ort: Any, place: Place, rows: int, width: int) -> _Returned:
        array = np.zeros((1, rows, width), np.float32)
        return cls(place(np.zeros_like(array)), array, ort.OrtValue.ortvalue_from_numpy(array))

    def rows(self) -> Floats:
        self.value.update_inplace(self.device)
        rows: Floats = self.array[0]
        return rows


class OrtCudaTaps:
    """The hidden states of the target's last step or feed. count: its rows so far; the decoder sets it to 0."""

    def __init__(self, width: int, contract: Contract, ort: Any, place: Place) -> None:
        self.count = 0
        self._width, self._ort, self._place = width, ort, place
        self._rows = np.zeros((max(contract.widths), width), np.float32)
        self._returned: dict[int, _Returned] = {}

    def bind(self, io: Any, width: int) -> None:
        self._returned[width] = _Returned.of(self._ort, self._place, width, self._width)
        io.bind_ortvalue_output(HIDDEN, self._returned[width].device)

    def take(self, width: int, count: int) -> None:
        """The first `count` rows of a pass of `width` follow those of the passes before."""
        self._rows[self.count : self.count + count] = self._returned[width].rows()[:count]
        self.count += count

    def __call__(self) -> Floats:
        return self._rows[: self.count]


class OrtCudaReader:
    """What a draft's next passes read. Implements `Reader`.

    fuse: runs its graph that fuses, None where the target's hidden states are read as they are. rows: of the last step;
    the decoder sets it.
    """

    def __init__(self, reads: Reads, contract: Contract, ort: Any, place: Place, fuse: RunGraph | None) -> None:
        self.rows = 0
        self._width, self._ort, self._place, self._fuse = reads.width, ort, place, fuse
        self._given = np.zeros((0, reads.width), np.float32)
        self._hidden: dict[int, Any] = {}
        self._feedback: dict[int, _Returned] = {}

    def bind(self, io: Any, width: int, rows: int) -> None:
        self._hidden[width] = self._place(np.zeros((1, width, self._width), np.float32))
        self._feedback[width] = _Returned.of(self._ort, self._place, rows, self._width)
        io.bind_ortvalue_input(HIDDEN, self._hidden[width])
        io.bind_ortvalue_output(FEEDBACK, self._feedback[width].device)

    def read(self, hidden: Floats) -> None:
        fused = hidden if self._fuse is None else self._fuse({HIDDEN: hidden[None]})[FUSED][0]
        self._given = np.array(fused, np.float32)

    def read_back(self) -> None:
        self._given = self._feedback[self.rows].rows()[-1:].copy()

    def begin(self, width: int, count: int) -> None:
        """Before a pass of `count` tokens and padding, whose rows are zeros."""
        padded = np.zeros((1, width, self._width), np.float32)
        part, self._given = self._given[:count], self._given[count:]
        padded[0, : len(part)] = part
        self._hidden[width].update_inplace(padded)
