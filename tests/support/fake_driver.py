"""Stands in for the module `cuda.bindings.driver`: one GPU in the host's memory, whose work waits until waited for.

What the real driver reports as a status is a status here; what it would leave undefined is an `AssertionError`.
"""

# ruff: noqa: N801, N802, N803 (the driver's own names)
from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from typing import Any, ClassVar

import numpy as np

from support.fake_kernels import KERNELS
from support.host_memory import HostMemory

Status = tuple[int]


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


OK = CUresult.CUDA_SUCCESS


class Handle(int):
    def __int__(self) -> int:
        raise AssertionError("deprecated since cuda-bindings 12.9.1: get_cuda_native_handle")


class _Event:
    def __init__(self, flags: int) -> None:
        self.timed = not flags & FakeDriver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.pending = 0  # records that were enqueued and not reached
        self.time: float | None = None


class FakeDriver:
    """calls: every function called, with its arguments. live: handles that were made and not released, by kind.

    failures: status to return instead, by function name, from the next call on. time: milliseconds, one for each
    operation that ran.
    """

    CUDA_VERSION = 12090

    class CUstream_flags(IntEnum):
        CU_STREAM_DEFAULT = 0
        CU_STREAM_NON_BLOCKING = 1

    class CUevent_flags(IntEnum):
        CU_EVENT_DEFAULT = 0
        CU_EVENT_BLOCKING_SYNC = 1
        CU_EVENT_DISABLE_TIMING = 2

    class CUstreamCaptureMode(IntEnum):
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
        CU_STREAM_CAPTURE_MODE_RELAXED = 2

    class CUdevice_attribute(IntEnum):
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76

    _NEEDS_NO_CONTEXT: ClassVar = re.compile("cuInit|cuDriver|cuDevice|cuCtx|cuGetError")
    _NOT_WHILE_CAPTURING: ClassVar = re.compile(
        "cuMemAlloc|cuMemHostAlloc|cuMemFree|cuModuleLoadData|cu(Stream|Event)Synchronize"
    )

    def __init__(
        self,
        memory: int = 1 << 30,
        name: str = "Fake GPU",
        compute_capability: tuple[int, int] = (8, 9),
        version: int = 13000,
        devices: int = 1,
    ) -> None:
        self.total = self.free = memory
        self.calls: list[tuple[Any, ...]] = []
        self.live: dict[int, str] = {}
        self.contexts: dict[int, Handle] = {}  # the primary context of each device that was ever retained
        self.failures: dict[str, int] = {}
        self.memory = HostMemory()
        self.time = 0.0
        self._name, self._compute_capability, self._version, self._devices = name, compute_capability, version, devices
        self._handles = count(0x1000)
        self._objects: dict[int, Any] = {}
        self._owners: dict[int, int] = {}  # the context that each handle was made in
        self._thread = threading.local()
        self._queue: list[Callable[[], None]] = []
        self._captured: list[Callable[[], None]] | None = None
        self._invalidated = False

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        return self._recorded(name, attribute) if name.startswith("cu") else attribute

    def _recorded(self, name: str, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name in self.failures:
                return self.failures[name], None
            if not self._NEEDS_NO_CONTEXT.match(name) and self._current not in self.contexts.values():
                return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
            if self.capturing and self._NOT_WHILE_CAPTURING.match(name):
                self._invalidated = True
                return CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, None
            return function(*arguments)

        return call

    @property
    def capturing(self) -> bool:
        return self._captured is not None

    def enqueue(self, run: Callable[[], None]) -> None:
        (self._queue if self._captured is None else self._captured).append(run)

    def _make(self, kind: str, thing: Any = None) -> int:
        handle = Handle(next(self._handles))
        self.live[handle] = kind
        self._objects[handle] = thing
        self._owners[handle] = self._current
        return handle

    def _release(self, handle: int, kind: str) -> Status:
        assert self.live.pop(handle, None) == kind, f"{handle:#x} is no {kind}, or was released before"
        return (OK,)

    def _object(self, handle: int, kind: str) -> Any:
        assert self.live.get(handle) == kind, f"{handle:#x} is no {kind}, or was released"
        assert self._owners[handle] == self._current, f"{kind} {handle:#x} belongs to another context than the thread's"
        return self._objects[handle]

    @property
    def _current(self) -> int:
        """The context of the calling thread, 0 for none."""
        return getattr(self._thread, "context", 0)

    def _run(self, until: Callable[[], bool]) -> None:
        while self._queue and not until():
            self.time += 1.0
            self._queue.pop(0)()

    # The device and its context.

    def cuGetErrorName(self, error: int) -> tuple[int, bytes | None]:
        known = error in CUresult._value2member_map_
        return (OK, CUresult(error).name.encode()) if known else (CUresult.CUDA_ERROR_INVALID_VALUE, None)

    def cuGetErrorString(self, error: int) -> tuple[int, bytes | None]:
        status, name = self.cuGetErrorName(error)
        return status, name and name.removeprefix(b"CUDA_ERROR_").replace(b"_", b" ").lower()

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return OK, self._version

    def cuInit(self, Flags: int) -> Status:
        assert Flags == 0
        return (OK,) if self._devices else (CUresult.CUDA_ERROR_NO_DEVICE,)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return OK, self._devices

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, dev: int) -> tuple[int, bytes]:
        return OK, self._name.encode().ljust(length, b"\0")

    def cuDeviceTotalMem(self, dev: int) -> tuple[int, int]:
        return OK, self.total

    def cuDeviceGetAttribute(self, attrib: int, dev: int) -> tuple[int, int]:
        return OK, self._compute_capability[
            attrib - self.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        ]

    def cuDevicePrimaryCtxRetain(self, dev: int) -> tuple[int, int]:
        return OK, self.contexts.setdefault(dev, Handle(next(self._handles)))

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return OK, self._current

    def cuCtxSetCurrent(self, ctx: int) -> Status:
        assert not ctx or ctx in self.contexts.values(), f"{ctx:#x} is no context"
        self._thread.context = ctx
        return (OK,)

    # Memory.

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return OK, self.free, self.total

    def cuMemAlloc(self, bytesize: int) -> tuple[int, int | None]:
        if bytesize < 1:
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        if bytesize > self.free:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        self.free -= bytesize
        address = self.memory.allocate(bytesize, content=0xCD)  # the driver does not clear it either
        self.live[address] = "memory"
        return OK, address

    def cuMemFree(self, dptr: int) -> Status:
        self.free += self.memory.free(dptr)
        return self._release(dptr, "memory")

    def cuMemHostAlloc(self, bytesize: int, Flags: int) -> tuple[int, int]:
        address = self.memory.allocate(bytesize, content=0xCD)
        self.live[address] = "pinned memory"
        return OK, address

    def cuMemFreeHost(self, p: int) -> Status:
        self.memory.free(p)
        return self._release(p, "pinned memory")

    def cuMemcpyAsync(self, dst: int, src: int, ByteCount: int, hStream: int) -> Status:
        self._object(hStream, "stream")
        to, source = self.memory.view(dst, ByteCount), self.memory.view(src, ByteCount)
        assert not np.may_share_memory(to, source), "the ends of a copy overlap"
        self.enqueue(lambda: np.copyto(to, source))
        return (OK,)

    def cuMemsetD8Async(self, dstDevice: int, uc: int, N: int, hStream: int) -> Status:
        return self._fill(dstDevice, uc, N, np.uint8, hStream)

    def cuMemsetD16Async(self, dstDevice: int, us: int, N: int, hStream: int) -> Status:
        return self._fill(dstDevice, us, N, np.uint16, hStream)

    def cuMemsetD32Async(self, dstDevice: int, ui: int, N: int, hStream: int) -> Status:
        return self._fill(dstDevice, ui, N, np.uint32, hStream)

    def _fill(
        self, address: int, pattern: int, number: int, dtype: type[np.unsignedinteger[Any]], stream: int
    ) -> Status:
        self._object(stream, "stream")
        to, element = self.memory.view(address, number * dtype().itemsize).view(dtype), dtype(pattern)
        self.enqueue(lambda: to.fill(element))
        return (OK,)

    # The stream and its events.

    def cuStreamCreate(self, Flags: int) -> tuple[int, int]:
        return OK, self._make("stream", Flags)

    def cuStreamDestroy(self, hStream: int) -> Status:
        return self._release(hStream, "stream")

    def cuStreamSynchronize(self, hStream: int) -> Status:
        self._object(hStream, "stream")
        self._run(until=lambda: False)
        return (OK,)

    def cuEventCreate(self, Flags: int) -> tuple[int, int]:
        return OK, self._make("event", _Event(Flags))

    def cuEventDestroy(self, hEvent: int) -> Status:
        return self._release(hEvent, "event")

    def cuEventRecord(self, hEvent: int, hStream: int) -> Status:
        event: _Event = self._object(hEvent, "event")
        self._object(hStream, "stream")
        event.pending += 1

        def reach() -> None:
            self.time -= 1.0  # an event takes no time
            event.pending -= 1
            event.time = self.time

        self.enqueue(reach)
        return (OK,)

    def cuEventSynchronize(self, hEvent: int) -> Status:
        event: _Event = self._object(hEvent, "event")
        self._run(until=lambda: not event.pending)  # one that was never recorded is not waited for
        return (OK,)

    def cuEventElapsedTime(self, hStart: int, hEnd: int) -> tuple[int, float | None]:
        start, end = self._object(hStart, "event"), self._object(hEnd, "event")
        if not (start.timed and end.timed):
            return CUresult.CUDA_ERROR_INVALID_HANDLE, None
        if start.pending or end.pending:
            return CUresult.CUDA_ERROR_NOT_READY, None
        return OK, end.time - start.time

    # Graphs.

    def cuStreamBeginCapture(self, hStream: int, mode: int) -> Status:
        self._object(hStream, "stream")
        assert not self.capturing, "the stream is being captured already"
        self._captured, self._invalidated = [], False
        return (OK,)

    def cuStreamEndCapture(self, hStream: int) -> tuple[int, int | None]:
        self._object(hStream, "stream")
        assert self.capturing, "nothing is being captured"
        captured, self._captured = self._captured, None
        if self._invalidated:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None
        return OK, self._make("graph", captured)

    def cuGraphInstantiate(self, hGraph: int, flags: int) -> tuple[int, int]:
        return OK, self._make("executable graph", self._object(hGraph, "graph"))

    def cuGraphDestroy(self, hGraph: int) -> Status:
        return self._release(hGraph, "graph")

    def cuGraphExecDestroy(self, hGraphExec: int) -> Status:
        return self._release(hGraphExec, "executable graph")

    def cuGraphLaunch(self, hGraphExec: int, hStream: int) -> Status:
        self._object(hStream, "stream")
        assert not self.capturing, "a graph within a graph"
        for run in self._object(hGraphExec, "executable graph"):
            self.enqueue(run)
        return (OK,)

    # Kernels: what they compute is written again in `fake_kernels.py`.

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        assert image.endswith(b"\0"), "the text has no end"
        return OK, self._make("module", image.decode())

    def cuModuleUnload(self, hmod: int) -> Status:
        return self._release(hmod, "module")

    def cuModuleGetFunction(self, hmod: int, name: bytes) -> tuple[int, Any]:
        entry = re.search(rf"\.entry {name.decode()}\((.*?)\)\s*{{", self._object(hmod, "module"), re.DOTALL)
        if entry is None:
            return CUresult.CUDA_ERROR_NOT_FOUND, None
        return OK, (KERNELS[name.decode()], entry.group(1).count(".param .u64"))

    def cuLaunchKernel(
        self,
        f: tuple[Callable[..., None], int],
        gridDimX: int,
        gridDimY: int,
        gridDimZ: int,
        blockDimX: int,
        blockDimY: int,
        blockDimZ: int,
        sharedMemBytes: int,
        hStream: int,
        kernelParams: int,
        extra: int,
    ) -> Status:
        self._object(hStream, "stream")
        assert sharedMemBytes == extra == 0
        kernel, number = f
        checkpoints = (ctypes.c_void_p * number).from_address(kernelParams)
        arguments = [ctypes.c_uint64.from_address(place).value for place in checkpoints]
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        self.enqueue(lambda: kernel(self.memory, grid, block, *arguments))
        return (OK,)
