from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from specexport.engines.cuda.device import CudaDevice
from specexport.engines.cuda.driver import Driver, find_gpu, load_driver
from specexport.engines.cuda.place_rows import PTX
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


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with refused(MissingPackageError, "specexport[cuda]"):
        CudaDevice()


@pytest.mark.parametrize(
    ("version", "usable"), [("12.9.0", False), ("11.8", False), ("12.9.1", True), ("13.0.1", True)]
)
def test_bindings_that_are_too_old(version: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = ModuleType("cuda.bindings")
    bindings.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", ModuleType("cuda.bindings.driver"))
    utils = ModuleType("cuda.bindings.utils")
    utils.get_cuda_native_handle = {"a stream": 7}.get  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings.utils", utils)
    if usable:
        assert load_driver().number("a stream") == 7
    else:
        with refused(EngineError, "cuda-bindings>=12.9.1,<14"):
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


def test_a_driver_of_an_older_major_version() -> None:
    with refused(EngineError, "cuda-bindings<12"):
        find_gpu(0, Driver(FakeDriver(version=11080)))


def test_an_error_has_the_drivers_words(fake: FakeDriver, device: CudaDevice) -> None:
    fake.failures["cuEventSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with refused(EngineError, "CUDA_ERROR_ILLEGAL_ADDRESS", "cuEventSynchronize"):
        device.synchronize()


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


def test_closing_releases_everything_but_the_context(fake: FakeDriver, device: CudaDevice) -> None:
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
    ]


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


def test_kernels_of_one_text_share_its_module(fake: FakeDriver, device: CudaDevice) -> None:
    """The driver compiles a module when it is loaded."""
    fake.calls.clear()
    for _ in range(3):
        device.kernel(PTX, "place_rows")
    assert sum("cuModuleLoadData" in str(call) for call in fake.calls) == 1


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
