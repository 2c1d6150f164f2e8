"""Small arrays that host and device share by one copy: a block of device memory and its page-locked mirror."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .protocol import ALIGNMENT, Address, Device


@dataclass(frozen=True)
class Slot:
    """One array. host: its mirror, which the device sees after `Page.send`, or which shows the device's after
    `Page.receive`.
    """

    address: Address
    host: NDArray[np.generic]

    def at(self, index: int) -> Address:
        return Address(self.address + index * self.host.itemsize)


class Page:
    def __init__(self, device: Device, purpose: str, arrays: Sequence[tuple[DTypeLike, int]]) -> None:
        """arrays: type and number of elements of each slot, in order."""
        self._device = device
        sizes = [np.dtype(dtype).itemsize * count for dtype, count in arrays]
        starts = np.cumsum([0, *(_aligned(size) for size in sizes)]).tolist()
        self._size = starts[-1]
        self._address = device.allocate(self._size, purpose)
        self._mirror = device.pinned(self._size)
        self.slots = [
            Slot(Address(self._address + start), self._mirror[start : start + size].view(dtype))
            for start, size, (dtype, _) in zip(starts, sizes, arrays, strict=False)
        ]

    def send(self) -> None:
        """Enqueue the copy of all mirrors to the device.

        They may be written again once the stream has been waited for.
        """
        self._device.copy(self._address, self._mirror.ctypes.data, self._size)

    def receive(self) -> None:
        self._device.copy(self._mirror.ctypes.data, self._address, self._size)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
