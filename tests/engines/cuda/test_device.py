from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest
from specexport.engines.cuda.device import CudaDevice
from specexport.engines.cuda.driver import Driver, Gpu, find_gpu, load_driver, size_text
from specexport.engines.cuda.protocol import ALIGNMENT
from specexport.engines.tensorrt.place_rows import PTX
from specexport.errors import EngineError, MissingPackageError
from support.fake_driver import CUresult, FakeDriver
from support.fake_kernels import KERNELS
from support.refusals import refused


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver(memory=1 << 20, compute_capability=(8, 7))


@pytest.fixture
def device(fake: FakeDriver) -> CudaDevice:
    return CudaDevice(driver=Driver(fake))


def names(fake: FakeDriver) -> list[str]:
    """All calls but those that see to the thread's context."""
    return [name for name, *_ in fake.calls if not name.startswith("cuCtx")]


def arguments(fake: FakeDriver, name: str) -> list[tuple[object, ...]]:
    return [tuple(values) for called, *values in fake.calls if called == name]


# What is found, and what is missing.


def test_the_gpu_that_is_found(fake: FakeDriver) -> None:
    assert find_gpu(0, Driver(fake)) == Gpu("Fake GPU", (8, 7), "13.0", 1 << 20)
    assert fake.live == {}, "looking must not make a context"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with refused(MissingPackageError, "specexport[cuda]"):
        CudaDevice()


@pytest.mark.parametrize(
    ("version", "usable"), [("12.7.9", False), ("11.8", False), ("12.8.0", True), ("13.0.1", True)]
)
def test_bindings_that_are_too_old(version: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = ModuleType("cuda.bindings")
    bindings.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("cuda.bindings.driver"))
    if usable:
        load_driver()
    else:
        with refused(EngineError, "cuda-bindings>=12.8"):
            load_driver()


class NoLibrary(FakeDriver):
    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        raise RuntimeError("Failed to dlopen libcuda.so.1")


class Stub(FakeDriver):
    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return CUresult.CUDA_ERROR_STUB_LIBRARY, 0


@pytest.mark.parametrize("kind", [NoLibrary, Stub])
def test_without_the_drivers_library(kind: type[FakeDriver]) -> None:
    with refused(EngineError, "NVIDIA"):
        find_gpu(0, Driver(kind()))


def test_a_driver_without_a_gpu() -> None:
    with refused(EngineError, "CUDA_VISIBLE_DEVICES", "NVIDIA"):
        find_gpu(0, Driver(FakeDriver(devices=0)))


@pytest.mark.parametrize("index", [-1, 1])
def test_a_gpu_that_is_not_there(index: int) -> None:
    with refused(EngineError, "counted"):
        CudaDevice(index, Driver(FakeDriver()))


def test_a_driver_of_an_older_major_version() -> None:
    with refused(EngineError, "cuda-bindings<12"):
        find_gpu(0, Driver(FakeDriver(version=11080)))


def test_a_driver_of_an_older_minor_version_is_no_problem() -> None:
    assert FakeDriver.CUDA_VERSION == 12090
    assert find_gpu(0, Driver(FakeDriver(version=12020))).driver == "12.2"


def test_an_error_has_the_drivers_words(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuEventSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with refused(EngineError, "CUDA_ERROR_ILLEGAL_ADDRESS", "cuEventSynchronize"):
        device.synchronize()


def test_an_error_that_has_no_words_yet(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuEventSynchronize"] = 12345
    with refused(EngineError, "12345"):
        device.synchronize()


# Opening and closing.


def test_opening_makes_a_stream_that_the_default_one_does_not_wait_for(fake: FakeDriver, device: CudaDevice) -> None:
    assert (device.name, device.compute_capability) == ("Fake GPU", (8, 7))
    assert arguments(fake, "cuStreamCreate") == [(fake.CUstream_flags.CU_STREAM_NON_BLOCKING,)]
    # Waiting must spin, and an event that keeps time costs more.
    assert arguments(fake, "cuEventCreate") == [(fake.CUevent_flags.CU_EVENT_DISABLE_TIMING,)]
    assert fake.live[device.stream] == "stream"


@pytest.mark.parametrize("function", ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate"])
def test_what_fails_to_open_leaves_nothing(fake: FakeDriver, function: str) -> None:
    fake.failures[function] = CUresult.CUDA_ERROR_INVALID_VALUE
    with refused(EngineError, "CUDA_ERROR_INVALID_VALUE"):
        CudaDevice(driver=Driver(fake))
    assert fake.live == {}


def everything(device: CudaDevice) -> None:
    address = device.allocate(8, "a test")
    device.pinned(8)
    device.kernel(PTX, "place_rows")
    device.capture(lambda: device.fill(address, 1, 8, 1))
    device.elapsed(lambda: None)


def test_closing_releases_everything_and_the_context_last(fake: FakeDriver, device: CudaDevice) -> None:
    everything(device)
    fake.calls.clear()
    device.close()
    assert fake.live == {}
    assert fake.free == fake.total
    assert names(fake) == [
        "cuStreamSynchronize",
        "cuGraphExecDestroy",
        "cuModuleUnload",
        "cuMemFreeHost",
        "cuMemFree",
        "cuEventDestroy",
        "cuStreamDestroy",
        "cuDevicePrimaryCtxRelease",
    ]


def test_closing_twice_is_harmless(fake: FakeDriver, device: CudaDevice) -> None:
    device.close()
    fake.calls.clear()
    device.close()
    assert fake.calls == []


# The contexts of others.


def everything_else(device: CudaDevice) -> None:
    address = device.allocate(8, "a test")
    device.fill(address, 1, 8, 1)
    device.copy(device.pinned(8).ctypes.data, address, 8)
    graph = device.capture(lambda: device.fill(address, 2, 8, 1))
    device.launch(graph)
    device.elapsed(lambda: None)
    device.synchronize()
    device.memory()


def test_another_library_may_make_its_context_current(fake: FakeDriver, device: CudaDevice) -> None:
    """As `torch.cuda.set_device(1)` does, at any time, in a thread that has called before."""
    _, foreign = fake.cuDevicePrimaryCtxRetain(1)
    everything_else(device)
    for current in (foreign, 0):
        fake.cuCtxSetCurrent(current)
        everything_else(device)
    fake.cuCtxSetCurrent(foreign)
    device.close()
    assert fake.live == {foreign: "context"}


def test_a_thread_keeps_the_context_that_it_had(fake: FakeDriver) -> None:
    _, foreign = fake.cuDevicePrimaryCtxRetain(1)
    for current in (foreign, 0):
        fake.cuCtxSetCurrent(current)
        device = CudaDevice(driver=Driver(fake))
        assert fake.cuCtxGetCurrent() == (0, current)
        with suppress(StopError), device.entered():
            everything_else(device)
            raise StopError
        assert fake.cuCtxGetCurrent() == (0, current)
        device.close()
        assert fake.cuCtxGetCurrent() == (0, current)


def test_closing_goes_on_after_a_fault_of_the_gpu(fake: FakeDriver, device: CudaDevice) -> None:
    everything(device)
    device.close()
    releases = [name for name in names(fake) if re.search("Destroy$|Free|Unload|Release$|StreamSynchronize", name)]
    broken = FakeDriver()
    device = CudaDevice(driver=Driver(broken))
    everything(device)
    contexts = ["cuCtxGetCurrent", "cuCtxSetCurrent"]
    broken.failures.update(dict.fromkeys((*releases, *contexts), CUresult.CUDA_ERROR_ILLEGAL_ADDRESS))
    broken.calls.clear()
    device.close()
    assert names(broken) == releases[-len(names(broken)) :], "each was asked for, and refused"
    assert len(names(broken)) == 8
    device.close()  # twice is harmless


def test_another_thread_may_close(fake: FakeDriver, device: CudaDevice) -> None:
    everything(device)
    thread = threading.Thread(target=device.close)
    thread.start()
    thread.join()
    assert fake.live == {}


CALLS: list[Callable[[CudaDevice], object]] = [
    lambda device: device.memory(),
    lambda device: device.allocate(1, "a test"),
    lambda device: device.pinned(1),
    lambda device: device.copy(0, 0, 0),
    lambda device: device.fill(0, 0, 0, 1),
    lambda device: device.synchronize(),
    lambda device: device.capture(lambda: None),
    lambda device: device.launch(0),
    lambda device: device.kernel(PTX, "place_rows"),
    lambda device: device.elapsed(lambda: None),
]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_may_be_called_after_close(device: CudaDevice, call: Callable[[CudaDevice], object]) -> None:
    device.close()
    with refused(EngineError, "Fake"):
        call(device)


def test_another_thread_may_call(device: CudaDevice) -> None:
    """A context is current in one thread only: without more, every call from a server's thread would fail."""
    found: list[object] = []

    def work() -> None:
        try:
            address = device.allocate(8, "a test")
            device.copy(device.pinned(8).ctypes.data, address, 8)
            device.synchronize()
            found.append(device.memory())
            device.close()
        except EngineError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [((1 << 20) - 8, 1 << 20)]


# Memory and copies.


def test_memory_is_zeros_and_aligned(fake: FakeDriver, device: CudaDevice) -> None:
    address, host = device.allocate(1000, "a test"), device.pinned(1000)
    assert address % ALIGNMENT == 0
    assert host.dtype == np.uint8
    assert not host.any()
    device.synchronize()
    assert not fake.memory.view(address, 1000).any()
    assert device.memory() == ((1 << 20) - 1000, 1 << 20)


def test_nothing_has_an_address_too(device: CudaDevice) -> None:
    assert device.allocate(0, "a test") != 0


def test_too_little_memory_says_what_to_do(device: CudaDevice) -> None:
    device.allocate(1 << 19, "the target's cache")
    with refused(EngineError, "512.0", code="out_of_device_memory"):
        device.allocate(3 << 20, "the draft's cache")


def test_too_little_page_locked_memory(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuMemHostAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with refused(EngineError, "2.0"):
        device.pinned(2048)


@pytest.mark.parametrize(
    ("call", "function"), [(CALLS[1], "cuMemAlloc"), (CALLS[2], "cuMemHostAlloc"), (CALLS[0], "cuMemGetInfo")]
)
def test_other_refusals_of_memory(
    fake: FakeDriver, device: CudaDevice, call: Callable[[CudaDevice], object], function: str
) -> None:
    fake.failures[function] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with refused(EngineError, "CUDA_ERROR_ILLEGAL_ADDRESS"):
        call(device)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (24 << 30, "24.0 GiB")],
)
def test_sizes_are_told_in_readable_units(size: int, text: str) -> None:
    assert size_text(size) == text


def test_copies_go_in_every_direction_and_in_order(device: CudaDevice) -> None:
    first, second = device.allocate(8, "a test"), device.allocate(8, "a test")
    source, back = device.pinned(8), device.pinned(8)
    source[:] = range(8)
    device.copy(first, source.ctypes.data, 8)
    device.copy(second, first + 4, 4)
    device.copy(back.ctypes.data, second, 8)
    assert not back.any(), "nothing has been waited for"
    device.synchronize()
    assert back.tolist() == [4, 5, 6, 7, 0, 0, 0, 0]


@pytest.mark.parametrize(("width", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.uint32)])
def test_a_fill_writes_the_low_bits(device: CudaDevice, width: int, dtype: type[np.generic]) -> None:
    address, back = device.allocate(16, "a test"), device.pinned(16)
    device.fill(address + width, 0x1122334455, 2, width)
    device.copy(back.ctypes.data, address, 16)
    device.synchronize()
    low = 0x1122334455 & ((1 << 8 * width) - 1)
    assert back.view(dtype)[:4].tolist() == [0, low, low, 0]


def test_waiting_waits_for_what_was_enqueued(fake: FakeDriver, device: CudaDevice) -> None:
    device.synchronize()
    device.copy(device.pinned(4).ctypes.data, device.allocate(4, "a test"), 4)
    fake.calls.clear()
    device.synchronize()
    assert names(fake) == ["cuEventRecord", "cuEventSynchronize"]
    assert fake.time == 2  # the fill of the allocation, and the copy


# Graphs.


def test_a_graph_is_replayed_on_what_the_memory_then_holds(fake: FakeDriver, device: CudaDevice) -> None:
    address, source, back = device.allocate(4, "a test"), device.pinned(4), device.pinned(4)

    def work() -> None:
        device.copy(address, source.ctypes.data, 4)
        device.copy(back.ctypes.data, address, 4)

    graph = device.capture(work)
    assert arguments(fake, "cuStreamBeginCapture") == [
        (device.stream, fake.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    ]
    assert "graph" not in fake.live.values(), "what was instantiated is no longer needed"
    source[:] = 7
    device.synchronize()
    assert not back.any(), "capturing runs nothing"
    for value in (8, 9):
        source[:] = value
        fake.calls.clear()
        device.launch(graph)
        device.synchronize()
        assert names(fake) == ["cuGraphLaunch", "cuEventRecord", "cuEventSynchronize"]
        assert back.tolist() == [value] * 4


class StopError(Exception):
    pass


def test_work_that_fails_ends_the_capture(fake: FakeDriver, device: CudaDevice) -> None:
    address = device.allocate(4, "a test")

    def work() -> None:
        device.fill(address, 1, 4, 1)
        raise StopError

    with pytest.raises(StopError):
        device.capture(work)
    assert not fake.capturing
    assert "graph" not in fake.live.values()
    device.fill(address, 2, 4, 1)
    device.synchronize()
    assert fake.memory.view(address, 4).tolist() == [2] * 4


def test_what_a_capture_does_not_allow(fake: FakeDriver, device: CudaDevice) -> None:
    with refused(EngineError, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cuMemAlloc"):
        device.capture(lambda: device.allocate(8, "a test") and None)
    assert not fake.capturing


def test_a_capture_that_was_broken_in_silence(fake: FakeDriver, device: CudaDevice) -> None:
    def work() -> None:
        fake.cuEventSynchronize(0)  # what a library does, and hides

    with refused(EngineError, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "cuStreamEndCapture"):
        device.capture(work)
    device.synchronize()


def test_a_graph_that_cannot_be_instantiated(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuGraphInstantiate"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with refused(EngineError, "cuGraphInstantiate", code="out_of_device_memory"):
        device.capture(lambda: None)
    assert "graph" not in fake.live.values()


# Kernels and time.


def test_a_kernel_is_given_its_arguments(fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setitem(KERNELS, "twice", lambda memory, *rest: given.append(rest))
    launch = device.kernel(".visible .entry twice(.param .u64 a, .param .u64 b) { ret; }", "twice")
    graph = device.capture(lambda: launch((3, 2, 1), (32, 8, 1), (2**63 + 5, 7)))
    assert given == []
    device.launch(graph)
    launch((1, 1, 1), (1, 1, 1), (0, 1))
    device.synchronize()
    assert given == [((3, 2, 1), (32, 8, 1), 2**63 + 5, 7), ((1, 1, 1), (1, 1, 1), 0, 1)]


def test_a_kernel_that_the_text_has_not(device: CudaDevice) -> None:
    with refused(EngineError, "CUDA_ERROR_NOT_FOUND"):
        device.kernel(PTX, "place_columns")


def test_time_is_that_of_the_work_alone(fake: FakeDriver, device: CudaDevice) -> None:
    address = device.allocate(4, "a test")

    def work() -> None:
        for _ in range(3):
            device.fill(address, 1, 4, 1)

    device.fill(address, 1, 4, 1)
    assert device.elapsed(work) == 3.0
    assert [kind for kind in fake.live.values() if kind == "event"] == ["event"], "its events were released"


# The real bindings, where they are installed.


@pytest.mark.parametrize("name", [name for name in vars(FakeDriver) if name.startswith("cu")])
def test_the_real_functions_take_the_same_arguments(name: str) -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    declared = getattr(real, name).__doc__.splitlines()[0]
    parameters = [
        parameter.split(":")[0].split()[-1]
        for parameter in re.findall(r"\((.*)\)", declared)[0].split(",")
        if parameter
    ]
    ours = [parameter for parameter in inspect.signature(getattr(FakeDriver, name)).parameters if parameter != "self"]
    assert ours == [parameter.lstrip("*") for parameter in parameters]


@pytest.mark.parametrize("name", ["CUstream_flags", "CUevent_flags", "CUstreamCaptureMode", "CUdevice_attribute"])
def test_the_real_names_have_the_same_values(name: str) -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    for member in getattr(FakeDriver, name):
        assert int(getattr(getattr(real, name), member.name)) == member
    for status in CUresult:
        assert int(getattr(real.CUresult, status.name)) == status


def test_the_real_bindings_without_a_gpu() -> None:
    pytest.importorskip("cuda.bindings.driver")
    try:
        found = str(find_gpu())
    except EngineError as error:
        found = str(error)
    assert re.match(r"Gpu\(|the NVIDIA driver('s library \(libcuda\) was not found| finds no GPU| serves CUDA)", found)
