"""The states of a model on the CPU: arrays bound as `past` and `present`, and how many of their rows count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, Contract, ModelSpec, Precision, State
from ..base import SavedStates
from ..open_rows import OpenRows
from .graph_check import Signature

PENDING, CERTAIN = COUNTS


@dataclass(frozen=True)
class _Kept:
    """One state: its array, and the array that a pass writes. name: without `past` or `present`."""

    name: str
    state: State
    array: NDArray[np.floating]
    written: NDArray[np.floating]


class OrtStates:
    """The states of one model. value: makes an OrtValue that aliases an array. keeps: see `OpenRows`.

    in_place: whether the graph reads all of the past before it writes the present, so that both can share memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        contract: Contract,
        value: Any,
        dtypes: Mapping[Precision, type],
        keeps: bool,
        in_place: bool,
    ) -> None:
        self._rows, self._value, self._in_place = OpenRows(contract.widest_step, keeps), value, in_place
        self._kept = []
        for name, state in spec.state_names("past"):
            array: NDArray[np.floating] = np.zeros(state.shape(contract), dtypes[state.precision(contract)])
            written = array if in_place else np.zeros_like(array)
            self._kept.append(_Kept(name.partition(".")[2], state, array, written))
        self._counts = {name: np.zeros(1, np.int64) for name in COUNTS}
        self._count_values = {name: value(array) for name, array in self._counts.items()}
        self.resumable = self._rows.resumable

    def bind(self, io: Any) -> None:
        for name, value in self._count_values.items():
            io.bind_ortvalue_input(name, value)
        for kept in self._kept:
            io.bind_ortvalue_input(f"past.{kept.name}", self._value(kept.array))
            io.bind_ortvalue_output(f"present.{kept.name}", self._value(kept.written))

    def begin(self, position: int, count: int, prompt: bool = False) -> int:
        """Prepare a pass of `count` rows at `position`; returns how many rows are certain after it, for `finish`."""
        before = self._rows.start if position else 0
        pending, certain = self._rows.begin(position, count, prompt)
        if not position:
            self._fill(0.0)
        self._counts[PENDING][0], self._counts[CERTAIN][0] = pending, certain
        return before + certain

    def finish(self, start: int, end: int) -> None:
        """The pass has run: rows up to `start` are certain, rows up to `end` are open."""
        for kept in () if self._in_place else self._kept:
            kept.array[:] = kept.written
        self._rows.finish(start, end)

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill the open rows from `start` on with `value`; if `start` is a certain row, all states are lost."""
        if start < self._rows.start or not start:
            self._rows.forget()
            self._fill(value)
            return
        for kept in self._kept:
            if kept.state.part != "state":
                kept.array[:, kept.state.ahead + start - self._rows.start :] = value

    def read(self, end: int) -> SavedStates:
        return SavedStates(self._rows.start, end, [kept.array.copy() for kept in self._kept])

    def write(self, saved: SavedStates) -> None:
        self._rows.forget()  # until all of them are written
        for kept, array in zip(self._kept, saved.arrays, strict=True):
            kept.array[:] = array
        self._rows.finish(saved.start, saved.end)

    def _fill(self, value: float) -> None:
        for kept in self._kept:
            kept.array.fill(value)


def state_signatures(spec: ModelSpec, contract: Contract) -> dict[str, Signature | None]:
    """Signatures by name of the inputs and outputs that a graph has for the states of `spec`; empty without states."""
    expected: dict[str, Signature | None] = dict.fromkeys(COUNTS) if spec.has_states else {}
    sides: tuple[Literal["past", "present"], ...] = ("past", "present")
    for side in sides:
        for name, state in spec.state_names(side):
            kind = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16"}[state.precision(contract)]
            expected[name] = (f"tensor({kind})", list(state.shape(contract)))
    return expected
