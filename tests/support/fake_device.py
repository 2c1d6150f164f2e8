"""A `Device` without a GPU: the real `CudaDevice` over a driver that is not there.

Work runs only when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from specexport.engines.cuda.device import Address, CudaDevice, Launch
from specexport.engines.cuda.driver import Driver

from support.cuda_on_host import THREADS
from support.fake_driver import FakeDriver


class FakeDevice(CudaDevice):
    """log: what was asked for, a line each, in order; what a capture took in starts with `captured`.

        allocate 4096 for the target's cache | pinned 64 | copy 64 | fill 256 x 2 | kernel place_rows (1, 4, 1)
        bind model.tokens | shape model.tokens [1, 2] | execute model 0 | capture | end of capture | launch | wait
        close

    A copy over the end of an allocation, two ends of a copy that overlap, and anything after `close` are
    `AssertionError`s; memory that is used up, and memory asked for during a capture, are `EngineError`s of the driver.
    """

    rule_threads = THREADS

    def __init__(
        self, memory: int = 1 << 30, name: str = "Fake GPU", compute_capability: tuple[int, int] = (8, 9)
    ) -> None:
        self.log: list[str] = []
        self.driver = FakeDriver(memory, name, compute_capability)
        self.held: int | None = None  # how many of its users there were when it was closed
        self.users: WeakSet[object] = WeakSet()  # execution contexts, which must be gone before it
        self._checks: dict[int, list[Callable[[], None]]] = {}  # of each graph, before its launch
        self._captured_checks: list[Callable[[], None]] = []
        super().__init__(driver=Driver(self.driver))

    @property
    def is_current(self) -> bool:
        """Whether the thread's context is this GPU's."""
        return bool(self.driver._current == self._context)

    @property
    def capturing(self) -> bool:
        return self.driver.capturing

    def note(self, line: str) -> None:
        self.log.append(f"captured {line}" if self.capturing else line)

    def view(self, address: int, size: int) -> NDArray[np.uint8]:
        """The bytes at `address`, whatever of the work before has run."""
        return self.driver.memory.view(address, size)

    def enqueue(self, line: str, run: Callable[[], None], check: Callable[[], None] | None = None) -> None:
        """Work of a library. check: called at each launch of a graph that holds it."""
        self.note(line)
        if self.capturing and check is not None:
            self._captured_checks.append(check)
        self.driver.enqueue(run)

    def allocate(self, size: int, purpose: str) -> Address:
        self.note(f"allocate {size} for {purpose}")
        return super().allocate(size, purpose)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        self.note(f"pinned {size}")
        return super().pinned(size)

    def copy(self, to: int, source: int, size: int) -> None:
        self.note(f"copy {size}")
        super().copy(to, source, size)

    def fill(self, to: int, pattern: int, count: int, width: int) -> None:
        self.note(f"fill {count} x {width}")
        super().fill(to, pattern, count, width)

    def synchronize(self) -> None:
        self.note("wait")
        super().synchronize()

    def capture(self, work: Callable[[], None]) -> Any:
        self.log.append("capture")
        self._captured_checks = []
        graph = super().capture(work)
        self._checks[graph] = self._captured_checks
        self.log.append("end of capture")
        return graph

    def launch(self, graph: Any) -> None:
        self.note("launch")
        for check in self._checks[graph]:
            check()
        super().launch(graph)

    def kernel(self, ptx: str, name: str) -> Launch:
        launch = super().kernel(ptx, name)

        def logged(grid: tuple[int, int, int], block: tuple[int, int, int], arguments: tuple[int, ...]) -> None:
            self.note(f"kernel {name} {grid}")
            launch(grid, block, arguments)

        return logged

    def close(self) -> None:
        self.note("close")
        self._checks.clear()  # which hold contexts
        self._captured_checks.clear()
        self.held = len(self.users)
        super().close()
