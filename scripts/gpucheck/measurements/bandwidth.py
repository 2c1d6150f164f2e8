"""The bandwidth of the GPU's memory, and the shortest time of a token that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from specexport.engines.cuda.device import Address

from ..timing import Spread

LARGEST = 2**30
COPIES = 4


class CopyDevice(Protocol):
    def memory(self) -> tuple[int, int]: ...

    def allocate(self, size: int, purpose: str) -> Address: ...

    def copy(self, to: int, source: int, size: int) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed(self, work: Callable[[], None]) -> float: ...


def measure_bandwidth(device: CopyDevice, repetitions: int) -> Spread:
    """Bytes per second of a copy within the device's memory, with reads and writes both counted."""
    free, _ = device.memory()
    size = min(LARGEST, free // 4)
    first, second = (device.allocate(size, "the measurement of the bandwidth") for _ in range(2))

    def copies() -> None:
        for _ in range(COPIES):
            device.copy(second, first, size)

    copies()
    device.synchronize()
    return Spread.of([2 * size * COPIES / (device.elapsed(copies) / 1e3) for _ in range(repetitions)])


def floor_ms(weight_bytes: int, cache_bytes: int, bandwidth: float) -> float:
    """Milliseconds that reading a token's weights and cache rows takes at `bandwidth` bytes per second."""
    return (weight_bytes + cache_bytes) / bandwidth * 1e3
