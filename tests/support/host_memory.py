"""Memory of the host that plays the device's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from specexport.engines.cuda.device import ALIGNMENT


class HostMemory:
    """Arrays by address. Reading or writing across the end of one is an error."""

    def __init__(self) -> None:
        self._arrays: dict[int, NDArray[np.uint8]] = {}
        self._freed: list[NDArray[np.uint8]] = []  # kept, as arrays made from addresses may still look at it

    def allocate(self, size: int, content: int = 0) -> int:
        buffer = np.full(size + ALIGNMENT, content, np.uint8)
        start = -buffer.ctypes.data % ALIGNMENT
        address = buffer.ctypes.data + start
        self._arrays[address] = buffer[start : start + size]
        return address

    def free(self, address: int) -> int:
        """Returns the size. Whoever still looks at the memory sees rubbish."""
        array = self._arrays.pop(address)
        array.fill(0xDD)
        self._freed.append(array)
        return array.size

    def view(self, address: int, size: int) -> NDArray[np.uint8]:
        for start, array in self._arrays.items():
            if start <= address < start + array.size:
                offset = address - start
                assert offset + size <= array.size, (
                    f"{size} bytes at {offset} run over the end of an allocation of {array.size}"
                )
                return array[offset : offset + size]
        raise AssertionError(f"{size} bytes at {address:#x}: nothing is allocated there")
