"""Staging buffers: small arrays that one copy moves, in a block of device memory and its page-locked host mirror."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .device import Address, CudaDevice, aligned


@dataclass(frozen=True)
class Slot:
    """One array of a page. host: its mirror; `Page.send` copies it to the device, `Page.receive` copies it back."""

    address: Address
    host: NDArray[np.generic]

    def at(self, index: int) -> Address:
        """The device address of element `index`."""
        return Address(self.address + index * self.host.itemsize)


class Page:
    """A staging buffer with several slots, copied as a whole."""

    def __init__(self, device: CudaDevice, purpose: str, arrays: Sequence[tuple[DTypeLike, int]]) -> None:
        """arrays: dtype and number of elements of each slot, in order. purpose: what it is for, for error messages."""
        self._device = device
        sizes = [np.dtype(dtype).itemsize * count for dtype, count in arrays]
        starts = np.cumsum([0, *map(aligned, sizes)]).tolist()
        self._size = starts[-1]
        self._address = device.allocate(self._size, purpose)
        self._mirror = device.pinned(self._size)
        self.slots = [
            Slot(Address(self._address + start), self._mirror[start : start + size].view(dtype))
            for start, size, (dtype, _) in zip(starts, sizes, arrays, strict=False)
        ]

    def send(self) -> None:
        """Enqueue the copy of all mirrors to the device.

        Do not write to them again before the stream was synchronized.
        """
        self._device.copy(self._address, self._mirror.ctypes.data, self._size)

    def receive(self) -> None:
        """Enqueue the copy of all slots from the device to their mirrors."""
        self._device.copy(self._mirror.ctypes.data, self._address, self._size)
