"""The states of a model on the device: a block that passes read, one that they write, and which rows count."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, ELEMENT_BYTES, Contract, ModelSpec, State
from ..base import SavedStates
from ..cuda.protocol import ALIGNMENT, Address, Device
from ..cuda.staging import Slot
from ..open_rows import OpenRows


class DeviceStates:
    """Of a model that has some. A plan must not write what it reads, so behind each pass all states are copied.

    keeps: see `OpenRows`. Raises `EngineError` for too little memory.
    """

    def __init__(self, spec: ModelSpec, contract: Contract, device: Device, keeps: bool, purpose: str) -> None:
        self._device, self._contract, self._rows = device, contract, OpenRows(contract.widest_step, keeps)
        self._places: list[tuple[str, State, int]] = []
        self._size = 0
        for name, state in spec.state_names("past"):
            self._places.append((name.partition(".")[2], state, self._size))
            size = prod(state.shape(contract)) * ELEMENT_BYTES[state.precision(contract)]
            self._size += -(-size // ALIGNMENT) * ALIGNMENT
        self._past, self._present = (device.allocate(self._size, purpose) for _ in range(2))
        self._staging: NDArray[np.uint8] | None = None
        self._behind = (0, 0)
        self.resumable = self._rows.resumable

    def addresses(self, counts: Sequence[Slot]) -> dict[str, Address]:
        """What a pass is bound to. counts: where its pending and certain lie."""
        found = {name: slot.address for name, slot in zip(COUNTS, counts, strict=True)}
        for name, _, start in self._places:
            found |= {f"past.{name}": Address(self._past + start), f"present.{name}": Address(self._present + start)}
        return found

    def enqueue(self) -> None:
        """Behind a pass: what it has written is what the next one reads."""
        self._device.copy(self._past, self._present, self._size)

    def begin(self, position: int, counts: Sequence[int], prompt: bool = False) -> list[tuple[int, int]]:
        """Pending and certain for passes one behind the other, each of so many rows, before they are launched.

        Until `finish` nothing is known of the states. Raises `EngineError`.
        """
        if not position:
            self._device.fill(self._past, 0, self._size // 4, 4)
        found = []
        for count in counts:
            start = self._rows.start if position else 0
            pending, certain = self._rows.begin(position, count, prompt)
            position += count
            self._rows.finish(start + certain, position)
            found.append((pending, certain))
        self._behind = (self._rows.start, self._rows.end)
        self._rows.forget()
        return found

    def finish(self) -> None:
        self._rows.finish(*self._behind)

    def assume(self, rows: int) -> None:
        """Say that the states are those behind `rows` rows, for passes whose results nobody wants."""
        self._rows.finish(rows, rows)

    def overwrite_rows(self, start: int, value: float) -> None:
        """Open rows from `start` on; where that is a row which is certain, all states are lost."""
        lost = start < self._rows.start or not start
        open_rows = start - self._rows.start
        if lost:
            self._rows.forget()
        for _, state, place in self._places:
            if not lost and state.part == "state":
                continue
            precision, shape = state.precision(self._contract), state.shape(self._contract)
            row, each, width = 0 if lost else state.ahead + open_rows, prod(shape[2:]), ELEMENT_BYTES[precision]
            count = max(0, shape[1] - row) * each
            if count:
                address = self._past + place + row * each * width
                self._device.fill(address, pattern(value, precision), count, width)

    def read(self, end: int) -> SavedStates:
        staged = self._staged()
        self._device.copy(staged.ctypes.data, self._past, self._size)
        self._device.synchronize()
        return SavedStates(self._rows.start, end, [staged.copy()])

    def write(self, saved: SavedStates) -> None:
        self._rows.forget()  # until all of it is there
        staged = self._staged()
        staged[:] = saved.arrays[0]
        self._device.copy(self._past, staged.ctypes.data, self._size)
        self._device.synchronize()
        self._rows.finish(saved.start, saved.end)

    def _staged(self) -> NDArray[np.uint8]:
        if self._staging is None:
            self._staging = self._device.pinned(self._size)
        return self._staging


def pattern(value: float, precision: str) -> int:
    """The bits of `value` in `precision`."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if precision == "fp16":
        return int.from_bytes(struct.pack("<e", value), "little")
    return bits >> 16 if precision == "bf16" else bits  # bfloat16 is the upper half
