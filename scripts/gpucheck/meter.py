"""A `Device` that forwards to another one, counts the host's calls, and times graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from specexport.engines.cuda.device import Address, CudaDevice, Launch

from .timing import Sample

# Milliseconds of launches that are timed together, so that the first launch's latency, which is included, is small.
TOGETHER_MS = 2.0
MAX_TOGETHER = 32


@dataclass
class Counts:
    """launches: of graphs. others: copies, fills and kernels that the host enqueued directly."""

    launches: int = 0
    waits: int = 0
    others: int = 0


class Meter:
    """counts: since they were last replaced; work that is captured does not count as calls of the host.

    last_graph: the graph that was launched last.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device, self.index = device, device.index
        self.name, self.compute_capability, self.stream = device.name, device.compute_capability, device.stream
        self.rule_threads = device.rule_threads
        self.counts = Counts()
        self.last_graph: Any = None
        self._capturing = self._muted = False

    def entered(self) -> AbstractContextManager[None]:
        return self._device.entered()

    def memory(self) -> tuple[int, int]:
        return self._device.memory()

    def allocate(self, size: int, purpose: str) -> Address:
        return self._device.allocate(size, purpose)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        return self._device.pinned(size)

    def copy(self, to: int, source: int, size: int) -> None:
        self._count_other()
        if not self._muted:
            self._device.copy(to, source, size)

    def fill(self, to: int, pattern: int, count: int, width: int) -> None:
        self._count_other()
        self._device.fill(to, pattern, count, width)

    def synchronize(self) -> None:
        self.counts.waits += 1
        if not self._muted:
            self._device.synchronize()

    def capture(self, work: Callable[[], None]) -> Any:
        self._capturing = True
        try:
            return self._device.capture(work)
        finally:
            self._capturing = False

    def capture_alone(self, work: Callable[[], None]) -> Any:
        """The graph of what a library enqueues in `work`, without the copies and waits in `work` itself."""
        self._muted = True
        try:
            return self.capture(work)
        finally:
            self._muted = False

    def launch(self, graph: Any) -> None:
        self.counts.launches += 1
        self.last_graph = graph
        self._device.launch(graph)

    def kernel(self, ptx: str, name: str) -> Launch:
        launch = self._device.kernel(ptx, name)

        def counted(grid: tuple[int, int, int], block: tuple[int, int, int], arguments: tuple[int, ...]) -> None:
            self._count_other()
            launch(grid, block, arguments)

        return counted

    def close(self) -> None:
        self._device.close()

    def elapsed(self, work: Callable[[], None]) -> float:
        """Milliseconds that `work` takes on the GPU. Waits for it."""
        return self._device.elapsed(work)

    def graph_time(self, graph: Any) -> Sample:
        """Milliseconds of one replay of `graph`, measured over so many that the launch latency is negligible."""

        def replay(times: int) -> float:
            def launches() -> None:
                for _ in range(times):
                    self._device.launch(graph)

            return self._device.elapsed(launches) / times

        replay(1)
        once = max(min(replay(1) for _ in range(3)), 1e-3)
        together = min(MAX_TOGETHER, math.ceil(TOGETHER_MS / once))
        return lambda: replay(together)

    def _count_other(self) -> None:
        self.counts.others += not self._capturing
