"""Work that is run once as it is, and from then on replayed from a captured graph: one launch and one wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .protocol import Device


class Replay:
    """Work is known by its key, which must tell everything that decides what it enqueues: rule, widths, span.

    All addresses and shapes were bound for good when the passes were made, so nothing else can change behind a graph.
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
