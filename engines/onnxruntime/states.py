"""The states of a model on ONNX Runtime: their memory, bound as `past` and `present`, and how many rows count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, Contract, ModelSpec, Precision, State
from ..base import SavedStates
from ..open_rows import OpenRows

PENDING, CERTAIN = COUNTS

Array = NDArray[Any]


class OrtStates:
    """The states of one model. keeps: see `OpenRows`. dtypes: numpy's types of their elements.

    value: makes an OrtValue that aliases an array. in_place: whether a graph reads all of the past before it writes the
    present, so that both are one memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        contract: Contract,
        keeps: bool,
        dtypes: Mapping[Precision, type[np.generic]],
        value: Callable[[Array], Any],
        in_place: bool,
    ) -> None:
        self._rows, self._value = OpenRows(contract.widest_step, keeps), value
        # name, without `past` or `present`; state; past; present
        self._memory: list[tuple[str, State, Array, Array]] = []
        for name, state in spec.state_names("past"):
            past: Array = np.zeros(state.shape(contract), dtypes[state.precision(contract)])
            present = past if in_place else np.zeros_like(past)
            self._memory.append((name.partition(".")[2], state, past, present))
        self._counts = {name: np.zeros(1, np.int64) for name in COUNTS}
        self._count_values = {name: value(array) for name, array in self._counts.items()}
        self.resumable = self._rows.resumable

    def bind(self, io: Any) -> None:
        for name, value in self._count_values.items():
            io.bind_ortvalue_input(name, value)
        for name, _, past, present in self._memory:
            io.bind_ortvalue_input(f"past.{name}", self._value(past))
            io.bind_ortvalue_output(f"present.{name}", self._value(present))

    def begin(self, position: int, count: int, prompt: bool = False) -> int:
        """Prepare a pass of `count` rows at `position`; returns how many rows are certain after it, for `finish`."""
        before = self._rows.start if position else 0
        pending, certain = self._rows.begin(position, count, prompt)
        self._counts[PENDING][0], self._counts[CERTAIN][0] = pending, certain
        if not position:
            self._fill(0.0)
        return before + certain

    def finish(self, start: int, end: int) -> None:
        """The pass has run: rows up to `start` are certain, rows up to `end` are open."""
        for _, _, past, present in self._memory:
            if present is not past:
                past[:] = present
        self._rows.finish(start, end)

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill the open rows from `start` on with `value`; if `start` is a certain row, all states are lost."""
        if start < self._rows.start or not start:
            self._rows.forget()
            self._fill(value)
            return
        for _, state, past, _ in self._memory:
            if state.part != "state":
                past[:, state.ahead + start - self._rows.start :] = value

    def read(self, end: int) -> SavedStates:
        return SavedStates(self._rows.start, end, [past.copy() for _, _, past, _ in self._memory])

    def write(self, saved: SavedStates) -> None:
        self._rows.forget()  # until all of them are written
        for (_, _, past, _), array in zip(self._memory, saved.arrays, strict=True):
            past[:] = array
        self._rows.finish(saved.start, saved.end)

    def _fill(self, value: float) -> None:
        for _, _, past, _ in self._memory:
            past.fill(value)
