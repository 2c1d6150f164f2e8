"""The interface of a GPU that engines use: memory, one stream of work, and graphs that replay it, kept by `Replay`.

`engines/cuda/device.py` implements it with the CUDA driver.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, NewType, Protocol

import numpy as np
from numpy.typing import NDArray

# Every address that is bound to an engine is a multiple of this.
ALIGNMENT = 256

Address = NewType("Address", int)


class Device(Protocol):
    """One GPU. Everything that is enqueued runs in order on one non-blocking stream, `stream` (a `CUstream` as an int).

    Addresses are of device memory, or of arrays made by `pinned`. Raises `EngineError` for whatever the driver refuses.
    """

    index: int  # as the driver numbers GPUs
    name: str
    compute_capability: tuple[int, int]
    stream: int
    rule_threads: int  # of a block of the rules' kernels

    def entered(self) -> AbstractContextManager[None]:
        """Make the GPU's context current in the calling thread, and restore the thread's own context at the end."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        ...

    def allocate(self, size: int, purpose: str) -> Address:
        """`size` bytes of zeros, aligned, valid until `close`.

        The error for too little memory names `purpose`, the bytes requested and the bytes free.
        """
        ...

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes of page-locked host memory, zeroed, aligned, valid until `close`.

        Copies between it and the device are asynchronous.
        """
        ...

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueue a copy of `size` bytes, in any direction between host and device."""
        ...

    def fill(self, to: int, pattern: int, count: int, width: int) -> None:
        """Enqueue a fill of `count` elements of `width` bytes (1, 2 or 4), each with the low bits of `pattern`."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done."""
        ...

    def capture(self, work: Callable[[], None]) -> Any:
        """Capture what `work` enqueues as a graph, without running it.

        The work must have run once before, so that it allocates nothing during the capture.
        """
        ...

    def launch(self, graph: Any) -> None:
        """Enqueue a captured graph: one launch."""
        ...

    def kernel(
        self, ptx: str, name: str
    ) -> Callable[[tuple[int, int, int], tuple[int, int, int], tuple[int, ...]], None]:
        """Load the kernel `name` from PTX; returns a function of grid, block and 64-bit arguments that enqueues it."""
        ...

    def close(self) -> None:
        """Release everything. Nothing may be called afterwards."""
        ...


class Replay:
    """Work that runs directly once, and from then on is replayed from a captured graph: one launch and one wait.

    Graphs are kept by key. A key must include everything that decides what the work enqueues: rule, widths, span. All
    addresses and shapes are bound once, when the passes are made, so nothing else that a graph depends on changes.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Any] = {}

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work and wait for it."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._device.launch(graph)
            self._device.synchronize()
            return
        # Libraries allocate and choose kernels when they first run, which a capture does not allow.
        work()
        self._device.synchronize()
        self._graphs[key] = self._device.capture(work)
