"""The states of a model on ONNX Runtime: their memory, bound as `past` and `present`, and how many rows count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, Contract, ModelSpec, Precision, State
from ..base import SavedStates
from ..open_rows import OpenRows
from .graphs import Signature

PENDING, CERTAIN = COUNTS


Array = NDArray[Any]


class HostState:
    """array: the memory. value: makes an OrtValue that aliases an array.

    in_place: whether a graph reads all of the past before it writes the present, so that both are one memory.
    """

    def __init__(self, array: Array, value: Callable[[Array], Any], in_place: bool) -> None:
        self._array, self._value = array, value
        self._written = array if in_place else np.zeros_like(array)

    def bind(self, io: Any, name: str) -> None:
        io.bind_ortvalue_input(f"past.{name}", self._value(self._array))
        io.bind_ortvalue_output(f"present.{name}", self._value(self._written))

    def settle(self) -> None:
        if self._written is not self._array:
            self._array[:] = self._written

    def read(self) -> Array:
        """The memory itself."""
        return self._array

    def write(self, array: Array) -> None:
        self._array[:] = array

    def fill(self, value: float) -> None:
        self._array.fill(value)


@dataclass(frozen=True)
class _Kept:
    """One state and its memory. name: without `past` or `present`."""

    name: str
    state: State
    memory: HostState


class OrtStates:
    """The states of one model. keeps: see `OpenRows`. dtypes: numpy's types of their elements.

    value, in_place: as of `HostState`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        contract: Contract,
        keeps: bool,
        dtypes: Mapping[Precision, type[np.generic]],
        value: Callable[[NDArray[Any]], Any],
        in_place: bool,
    ) -> None:
        self._rows = OpenRows(contract.widest_step, keeps)
        self._kept = []
        for name, state in spec.state_names("past"):
            array: NDArray[Any] = np.zeros(state.shape(contract), dtypes[state.precision(contract)])
            self._kept.append(_Kept(name.partition(".")[2], state, HostState(array, value, in_place)))
        self._counts = {name: np.zeros(1, np.int64) for name in COUNTS}
        self._count_values = {name: value(array) for name, array in self._counts.items()}
        self.resumable, self.certain = self._rows.resumable, self._rows.certain

    @property
    def counts(self) -> tuple[int, int]:
        """Pending and certain, as the next pass will read them."""
        return int(self._counts[PENDING][0]), int(self._counts[CERTAIN][0])

    @counts.setter
    def counts(self, counts: tuple[int, int]) -> None:
        self._counts[PENDING][0], self._counts[CERTAIN][0] = counts

    def bind(self, io: Any) -> None:
        for name, value in self._count_values.items():
            io.bind_ortvalue_input(name, value)
        for kept in self._kept:
            kept.memory.bind(io, kept.name)

    def begin(self, position: int, count: int, prompt: bool = False) -> int:
        """Prepare a pass of `count` rows at `position`; returns how many rows are certain after it, for `finish`."""
        before = self._rows.start if position else 0
        self.counts = self._rows.begin(position, count, prompt)
        if not position:
            self._fill(0.0)
        return before + self.counts[1]

    def finish(self, start: int, end: int) -> None:
        """The pass has run: rows up to `start` are certain, rows up to `end` are open."""
        for kept in self._kept:
            kept.memory.settle()
        self._rows.finish(start, end)

    def overwrite_rows(self, start: int, value: float) -> None:
        """Fill the open rows from `start` on with `value`; if `start` is a certain row, all states are lost."""
        if start < self._rows.start or not start:
            self._rows.forget()
            self._fill(value)
            return
        for kept in self._kept:
            if kept.state.part != "state":
                array = kept.memory.read()
                array[:, kept.state.ahead + start - self._rows.start :] = value
                kept.memory.write(array)

    def contents(self) -> list[NDArray[Any]]:
        """A copy on the host, after whatever rows."""
        return [kept.memory.read().copy() for kept in self._kept]

    def restore(self, contents: Sequence[NDArray[Any]]) -> None:
        for kept, array in zip(self._kept, contents, strict=True):
            kept.memory.write(array)

    def read(self, end: int) -> SavedStates:
        return SavedStates(self._rows.start, end, self.contents())

    def write(self, saved: SavedStates) -> None:
        self._rows.forget()  # until all of them are written
        self.restore(saved.arrays)
        self._rows.finish(saved.start, saved.end)

    def _fill(self, value: float) -> None:
        for kept in self._kept:
            kept.memory.fill(value)


def state_signatures(spec: ModelSpec, contract: Contract) -> dict[str, Signature | None]:
    """Signatures by name of the inputs and outputs that a graph has for the states of `spec`; empty without states."""
    expected: dict[str, Signature | None] = dict.fromkeys(COUNTS) if spec.has_states else {}
    sides: tuple[Literal["past", "present"], ...] = ("past", "present")
    for side in sides:
        for name, state in spec.state_names(side):
            kind = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16"}[state.precision(contract)]
            expected[name] = (f"tensor({kind})", list(state.shape(contract)))
    return expected
