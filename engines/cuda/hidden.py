"""Hidden states on the device: an output of the target's passes, an input of those of a draft that reads them.

The host has them too, and decides which rows the next pass of the draft reads. So prompts, common prefixes, rolled back
rows and rounds of the host between those of the device need no care here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...bundle import FEEDBACK, FUSED, HIDDEN, Contract, ModelSpec, Reads
from .device import Address, CudaDevice
from .loaded_graph import Enqueue, LoadedGraph

Floats = NDArray[np.float32]


class DeviceTaps:
    """The hidden states `[T, F]` of the target's last step or feed. count: its rows; whoever runs passes sets it.

    address: those of the last pass, `[widest pass, F] float32` on the device.
    """

    def __init__(self, spec: ModelSpec, contract: Contract, device: CudaDevice) -> None:
        self.width = len(spec.taps) * spec.tap_width
        self._device, rows = device, max(contract.widths)
        self.address = device.allocate(4 * rows * self.width, "the target's hidden states")
        self._host: Floats = device.pinned(4 * rows * self.width).view(np.float32).reshape(rows, self.width)
        self.count = 0

    def __call__(self) -> Floats:
        return self._host[: self.count]

    def receive(self, count: int, place: int = 0) -> None:
        """Enqueue the copy of the last pass's first `count` rows to the host, to the rows from `place` on."""
        self._device.copy(self._host[place:].ctypes.data, self.address, 4 * count * self.width)

    def put_before(self, rows: Floats) -> None:
        """These are of passes that belong to the same step as the last one."""
        last = self().copy()
        self.count += len(rows)
        self._host[: self.count] = np.concatenate([rows, last])


class DeviceReader:
    """What a draft's next passes read. Implements `Reader`.

    address: of what a pass reads, `[widest pass, H] float32`; feedback: of what it gives back, `[widest step, H]`.
    width: H; given_width: of the hidden states that it is given. rows: of the last step; the decoder sets it.
    """

    def __init__(
        self,
        reads: Reads,
        tap_width: int,
        contract: Contract,
        device: CudaDevice,
        scratch: Address,
        fuse: LoadedGraph | None,
    ) -> None:
        """fuse: its graph that fuses, None where the target's hidden states are read as they are."""
        self.width, self.given_width, self.rows = reads.width, len(reads.taps) * tap_width, 0
        self._device, self._contract, rows = device, contract, max(contract.widths)
        self.address = device.allocate(4 * rows * self.width, "what the draft reads")
        self.feedback = device.allocate(4 * contract.widest_step * self.width, "what the draft gives back")
        size = 4 * rows * self.given_width
        self._given = self.address if fuse is None else device.allocate(size, "hidden states for the draft")
        self._host: Floats = device.pinned(size).view(np.float32).reshape(rows, self.given_width)
        self._next, self._end, self._reads_back = 0, 0, False
        self._fuse: dict[int, Enqueue] = {}
        for profile, width in enumerate(contract.widths if fuse is not None else ()):
            assert fuse is not None
            shapes, given = {HIDDEN: (1, width, self.given_width)}, {FUSED: (1, width, self.width)}
            addresses = {HIDDEN: self._given, FUSED: self.address}
            self._fuse[width] = fuse.bind(profile, shapes, addresses, scratch, given)

    def read(self, hidden: Floats) -> None:
        self._host[: len(hidden)] = hidden
        self._next, self._end, self._reads_back = 0, len(hidden), False

    def read_back(self) -> None:
        self._reads_back = True

    def begin(self, width: int, count: int) -> bool:
        """Enqueue the copy of what a pass of `count` tokens and padding reads; whether `fuse` must follow.

        Rows that are not given are zeros: those of padding must be numbers, whatever lay there.
        """
        if self._reads_back:
            self._device.copy(self.address, self.feedback + 4 * (self.rows - 1) * self.width, 4 * self.width)
            return False
        count = min(count, self._end - self._next)
        row = 4 * self.given_width
        if count:
            self._device.copy(self._given, self._host[self._next :].ctypes.data, count * row)
        if count < width:
            self._device.fill(self._given + count * row, 0, (width - count) * self.given_width, 4)
        self._next += count
        return True

    def pad(self, width: int) -> None:
        """Of rows that `send` sends: zeros after those that were read."""
        self._host[self._end : width] = 0.0

    def send(self, width: int) -> None:
        """Enqueue the copy of `width` rows, and `fuse`."""
        self._device.copy(self._given, self._host.ctypes.data, 4 * width * self.given_width)
        self.fuse(width)

    def fuse(self, width: int) -> None:
        """Enqueue the pass that makes what the draft reads of the target's hidden states."""
        if run := self._fuse.get(width):
            run()


def hidden_bindings(
    taps: DeviceTaps | None, reader: DeviceReader | None, width: int, rows: int
) -> tuple[dict[str, Address], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Of a pass of `width` tokens and `rows` rows of logits: addresses, shapes of inputs, and shapes of outputs."""
    if taps is not None:
        return {HIDDEN: taps.address}, {}, {HIDDEN: (1, width, taps.width)}
    if reader is not None:
        addresses = {HIDDEN: reader.address, FEEDBACK: reader.feedback}
        return addresses, {HIDDEN: (1, width, reader.width)}, {FEEDBACK: (1, rows, reader.width)}
    return {}, {}, {}
