"""Work that runs directly once and is then replayed from a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .device import CudaDevice


class Replay:
    """Work that runs directly once, and from then on is replayed from a captured graph: one launch and one wait.

    Graphs are kept by key. A key must include everything that decides what the work enqueues: rule, widths, span. All
    addresses and shapes are bound once, when the passes are made, so nothing else that a graph depends on changes.
    """

    def __init__(self, device: CudaDevice) -> None:
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
