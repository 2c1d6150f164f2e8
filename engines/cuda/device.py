"""A GPU through the CUDA driver: memory, one stream of work, and graphs that replay what was captured.

A thread has one current context, which other libraries in the process set too. So every call makes ours current first,
and `entered` restores the thread's context afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from ...errors import EngineError
from .driver import OUT_OF_MEMORY, SUCCESS, Driver, find_gpu, load_driver, out_of_memory, size_text

# Every address that is bound to an engine is a multiple of this.
ALIGNMENT = 256
Address = NewType("Address", int)  # of device memory, or of an array made by `CudaDevice.pinned`


def aligned(size: int) -> int:
    """The smallest multiple of `ALIGNMENT` that holds `size` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


Launch = Callable[[tuple[int, int, int], tuple[int, int, int], tuple[int, ...]], None]


class CudaDevice:
    """GPU number `index`, with the primary context, which TensorRT uses too. Any thread may call, one at a time.

    Everything that is enqueued runs in order on one non-blocking stream, `stream` (a `CUstream` as an int). Raises
    `EngineError` as `find_gpu` does, and for whatever the driver refuses.
    """

    rule_threads = 256  # of a block of the rules' kernels

    def __init__(self, index: int = 0, driver: Driver | None = None) -> None:
        self._driver = driver = driver or load_driver()
        self.index = index
        self.name, self.compute_capability, _, _ = find_gpu(index, driver)
        device = driver.call("cuDeviceGet", index)
        self._is_open = True
        self._modules: dict[str, Any] = {}  # by their PTX
        # Releases what was made if a later step fails; otherwise `close` does, in reverse order.
        with ExitStack() as releases:
            # Never released: the CUDA runtime within TensorRT keeps handles of it, which a later load would use.
            self._context = driver.call("cuDevicePrimaryCtxRetain", device)
            with self.entered(), ExitStack() as made:
                # The default stream waits for every other one, and TensorRT synchronizes if it is used.
                stream = self._call("cuStreamCreate", driver.bindings.CUstream_flags.CU_STREAM_NON_BLOCKING)
                made.callback(driver.attempt, "cuStreamDestroy", stream)
                self.stream = driver.number(stream)
                self._done = self._event(made, timed=False)
                releases.push(made.pop_all())
            self._releases = releases.pop_all()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the GPU's context current in the calling thread, and restore the thread's own context at the end."""
        previous_context = self._driver.call("cuCtxGetCurrent")
        self._enter()
        try:
            yield
        finally:
            if previous_context != self._context:
                self._driver.attempt("cuCtxSetCurrent", previous_context)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        self._enter()
        status, *values = self._driver.bindings.cuMemGetInfo()
        if status != SUCCESS:
            raise self._driver.error("cuMemGetInfo", status)
        return int(values[0]), int(values[1])

    def allocate(self, size: int, purpose: str) -> Address:
        """`size` bytes of zeros, aligned, valid until `close`. purpose: for the error, as are the bytes free."""
        size = max(size, 1)  # the driver cannot allocate 0 bytes
        self._enter()
        status, pointer = self._driver.attempt("cuMemAlloc", size)
        if status == OUT_OF_MEMORY:
            raise out_of_memory(purpose, size, *self.memory())
        if status != SUCCESS:
            raise self._driver.error("cuMemAlloc", status)
        address = Address(int(pointer))
        self._releases.callback(self._driver.attempt, "cuMemFree", address)
        self._call("cuMemsetD8Async", address, 0, size, self.stream)
        return address

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes of page-locked host memory, zeroed, aligned, valid until `close`: copies from and to it are
        asynchronous.
        """
        self._enter()
        status, pointer = self._driver.attempt("cuMemHostAlloc", size, 0)
        if status == OUT_OF_MEMORY:
            raise EngineError(
                f"out of page-locked host memory: {size_text(size)} requested; close other programs that use memory"
            )
        if status != SUCCESS:
            raise self._driver.error("cuMemHostAlloc", status)
        self._releases.callback(self._driver.attempt, "cuMemFreeHost", int(pointer))
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(pointer)))
        array.fill(0)
        return array

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueue a copy of `size` bytes, in any direction between host and device."""
        self._call("cuMemcpyAsync", to, source, size, self.stream)

    def fill(self, to: int, pattern: int, count: int, width: int) -> None:
        """Enqueue a fill of `count` elements of `width` bytes (1, 2 or 4), each with the low bits of `pattern`."""
        low_bits = pattern & ((1 << 8 * width) - 1)
        self._call(f"cuMemsetD{8 * width}Async", to, low_bits, count, self.stream)

    def synchronize(self) -> None:
        self._call("cuEventRecord", self._done, self.stream)
        # No blocking event, since a round is too short to sleep: this spins, except where the driver decides otherwise
        # (CU_CTX_SCHED_AUTO on Tegra).
        self._call("cuEventSynchronize", self._done)

    def capture(self, work: Callable[[], None]) -> Any:
        """Capture what `work` enqueues as a graph, without running it.

        The work must have run once before, so that it allocates nothing during the capture.
        """
        # Thread-local: what other threads do with the GPU meanwhile must not break the capture.
        self._call(
            "cuStreamBeginCapture",
            self.stream,
            self._driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        )
        try:
            work()
        except BaseException:
            status, graph = self._driver.attempt("cuStreamEndCapture", self.stream)
            if status == SUCCESS:
                self._driver.attempt("cuGraphDestroy", graph)
            raise
        graph = self._call("cuStreamEndCapture", self.stream)
        try:
            executable = self._call("cuGraphInstantiate", graph, 0)
        finally:
            self._driver.attempt("cuGraphDestroy", graph)
        self._releases.callback(self._driver.attempt, "cuGraphExecDestroy", executable)
        return executable

    def launch(self, graph: Any) -> None:
        self._call("cuGraphLaunch", graph, self.stream)

    def kernel(self, ptx: str, name: str) -> Launch:
        """Load the kernel `name` from PTX; returns a function of grid, block and 64-bit arguments that enqueues it."""
        module = self._modules.get(ptx)
        if module is None:
            module = self._modules[ptx] = self._call("cuModuleLoadData", ptx.encode() + b"\0")
            self._releases.callback(self._driver.attempt, "cuModuleUnload", module)
        function = self._call("cuModuleGetFunction", module, name.encode())

        def launch(grid: tuple[int, int, int], block: tuple[int, int, int], arguments: tuple[int, ...]) -> None:
            values = (ctypes.c_uint64 * len(arguments))(*arguments)
            places = [ctypes.addressof(values) + 8 * index for index in range(len(arguments))]
            pointers = (ctypes.c_void_p * len(arguments))(*places)  # the driver copies the values during the call
            self._call("cuLaunchKernel", function, *grid, *block, 0, self.stream, ctypes.addressof(pointers), 0)

        return launch

    def elapsed(self, work: Callable[[], None]) -> float:
        """Milliseconds that the GPU takes for what `work` enqueues. Waits until it is done."""
        with ExitStack() as releases:
            start, end = self._event(releases, timed=True), self._event(releases, timed=True)
            self._call("cuEventRecord", start, self.stream)
            work()
            self._call("cuEventRecord", end, self.stream)
            self._call("cuEventSynchronize", end)
            return float(self._call("cuEventElapsedTime", start, end))

    def close(self) -> None:
        """Wait for enqueued work, then release everything but the context. Closing again does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        # After a fault of the GPU every call fails, which must not keep the rest from being released.
        status, previous_context = self._driver.attempt("cuCtxGetCurrent")
        self._driver.attempt("cuCtxSetCurrent", self._context)
        self._driver.attempt("cuStreamSynchronize", self.stream)
        self._releases.close()
        if status == SUCCESS and previous_context != self._context:
            self._driver.attempt("cuCtxSetCurrent", previous_context)

    def _event(self, releases: ExitStack, timed: bool) -> Any:
        event = self._call("cuEventCreate", 0 if timed else self._driver.bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        releases.callback(self._driver.attempt, "cuEventDestroy", event)
        return event

    def _call(self, function: str, *arguments: Any) -> Any:
        self._enter()
        status, value = self._driver.attempt(function, *arguments)
        if status == OUT_OF_MEMORY:  # a graph allocates memory too
            free, total = self.memory()
            raise EngineError(
                f"out of device memory in {function}: {size_text(free)} of {size_text(total)} free; "
                "lower --max-seq-len, choose a smaller --precision or close other programs that use the GPU",
                code="out_of_device_memory",
            )
        if status != SUCCESS:
            raise self._driver.error(function, status)
        return value

    def _enter(self) -> None:
        """Make the context current in this thread, which may not be the one that loaded."""
        if not self._is_open:
            raise EngineError(f"{self.name} was closed; load the bundle again")
        if self._driver.call("cuCtxGetCurrent") != self._context:
            self._driver.call("cuCtxSetCurrent", self._context)
