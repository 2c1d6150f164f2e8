"""The caches of a decoder on the CPU, and its states where it has some: numpy arrays that its passes are bound to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...bundle import Precision
from ..base import Rows, SavedStates
from .states import OrtStates

NUMPY_DTYPES: dict[Precision, type[np.floating]] = {"fp32": np.float32, "fp16": np.float16}
CacheRows = NDArray[np.floating]  # [1, num_kv_heads, rows, head_dim]


class HostMemory:
    """Implements what `Decoder` says of rows and states."""

    _caches: list[CacheRows]
    _states: OrtStates | None = None

    def resumable(self, rows: int) -> int:
        return rows if self._states is None else self._states.resumable(rows)

    def overwrite_rows(self, start: int, value: float) -> None:
        for array in self._caches:
            array[:, :, start:] = value
        if self._states is not None:
            self._states.overwrite_rows(start, value)

    def read_rows(self, end: int) -> list[Rows]:
        return [array[0, :, :end].copy() for array in self._caches]

    def write_rows(self, saved: Sequence[Rows], start: int, end: int) -> None:
        for array, rows in zip(self._caches, saved, strict=True):
            array[0, :, start:end] = rows[:, start:end]

    def read_recurrent_states(self, end: int) -> SavedStates:
        assert self._states is not None
        return self._states.read(end)

    def write_recurrent_states(self, saved: SavedStates) -> None:
        assert self._states is not None
        self._states.write(saved)
