"""What the engines ask of a GPU: memory, one stream of work, and graphs that replay it.

`engines/cuda/device.py` has the real one.
"""

from __future__ import annotations

from collections.abc import Callable
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

    index: int  # as the driver counts
    name: str
    compute_capability: tuple[int, int]
    stream: int

    def entered(self) -> AbstractContextManager[None]:
        """The GPU is the calling thread's within, and what it was before afterwards: other libraries have theirs."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes free and bytes in all."""
        ...

    def allocate(self, size: int, purpose: str) -> Address:
        """`size` bytes of zeros, aligned, until `close`.

        The error for too little names `purpose`, what was asked and what is free.
        """
        ...

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes of page-locked host memory, zeroed, aligned, until `close`.

        Copies between it and the device are asynchronous.
        """
        ...

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueue a copy, in any direction."""
        ...

    def fill(self, to: int, pattern: int, count: int, width: int) -> None:
        """Enqueue the writing of `count` elements of `width` bytes (1, 2 or 4), each the low bits of `pattern`."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done."""
        ...

    def capture(self, work: Callable[[], None]) -> Any:
        """What `work` enqueues, as a graph, instead of running it.

        Must have run once before, so that nothing is allocated within.
        """
        ...

    def launch(self, graph: Any) -> None:
        """Enqueue a captured graph: one launch."""
        ...

    def kernel(
        self, ptx: str, name: str
    ) -> Callable[[tuple[int, int, int], tuple[int, int, int], tuple[int, ...]], None]:
        """A kernel from PTX: called with grid, block and 64-bit arguments, it is enqueued."""
        ...

    def close(self) -> None:
        """Give back everything. Nothing may be called afterwards."""
        ...
