"""The states of a model on the device: a block that passes read, a block that they write, and how many rows count."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...bundle import COUNTS, ELEMENT_BYTES, Contract, ModelSpec, State
from ..base import SavedStates
from ..open_rows import OpenRows
from .device import Address, CudaDevice, aligned
from .staging import Slot


class DeviceStates:
    """The states of one model. A pass must not write what it reads, so all states are copied after each pass.

    keeps: see `OpenRows`. purpose: what the memory is for, for error messages. Raises `EngineError` for too little
    memory.
    """

    def __init__(self, spec: ModelSpec, contract: Contract, device: CudaDevice, keeps: bool, purpose: str) -> None:
        self._device, self._contract, self._rows = device, contract, OpenRows(contract.widest_step, keeps)
        self._places: list[tuple[str, State, int]] = []
        self._size = 0
        for name, state in spec.state_names("past"):
            self._places.append((name.partition(".")[2], state, self._size))
            size = prod(state.shape(contract)) * ELEMENT_BYTES[state.precision(contract)]
            self._size += aligned(size)
        self._past, self._present = (device.allocate(self._size, purpose) for _ in range(2))
        self._staging: NDArray[np.uint8] | None = None
        self._after = (0, 0)  # start and end of the open rows after the passes that `begin` announced
        self.resumable = self._rows.resumable

    def addresses(self, counts: Sequence[Slot]) -> dict[str, Address]:
        """The addresses that a pass is bound to, by name. counts: the slots of its `pending` and `certain`."""
        found = {name: slot.address for name, slot in zip(COUNTS, counts, strict=True)}
        for name, _, start in self._places:
            found |= {f"past.{name}": Address(self._past + start), f"present.{name}": Address(self._present + start)}
        return found

    def enqueue(self) -> None:
        """Enqueue, after a pass, the copy of the states that it wrote to where the next pass reads them."""
        self._device.copy(self._past, self._present, self._size)

    def begin(self, position: int, counts: Sequence[int], prompt: bool = False) -> list[tuple[int, int]]:
        """Begin consecutive passes of `counts` rows each; returns (pending, certain) for each of them.

        Until `finish` the states count as unknown. Raises `EngineError` if no pass can continue from `position`.
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
        self._after = (self._rows.start, self._rows.end)
        self._rows.forget()
        return found

    def finish(self) -> None:
        """The passes that `begin` announced have run."""
        self._rows.finish(*self._after)

    def assume(self, rows: int) -> None:
        """Treat the states as those after `rows` rows, for passes whose results are not used."""
        self._rows.finish(rows, rows)

    def overwrite_rows(self, start: int, value: float) -> None:
        """Enqueue a fill of the open rows from `start` on; if `start` is a certain row, all states are lost."""
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
        self._rows.forget()  # until all of them are written
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
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if precision == "fp16":
        return int.from_bytes(struct.pack("<e", value), "little")
    return bits >> 16 if precision == "bf16" else bits  # bfloat16 is the upper half
