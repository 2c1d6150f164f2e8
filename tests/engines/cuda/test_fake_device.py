"""The stand-in for a GPU must catch what a GPU would get wrong in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specexport.engines.cuda.protocol import ALIGNMENT, Device
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.host_memory import HostMemory
from support.refusals import refused

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(memory=1 << 16, name="Orin", compute_capability=(8, 7))


def test_it_is_a_device(device: FakeDevice) -> None:
    wanted = {name for name in {*vars(Device), *Device.__annotations__} if not name.startswith("_")}
    assert {name for name in wanted if hasattr(device, name)} == wanted
    assert (device.name, device.compute_capability, device.memory()) == ("Orin", (8, 7), (1 << 16, 1 << 16))


def test_nothing_is_done_before_it_is_waited_for(device: FakeDevice) -> None:
    address, host = device.allocate(8, "a test"), device.pinned(8)
    device.fill(address, 7, 8, 1)
    device.copy(host.ctypes.data, address, 8)
    assert not host.any()
    device.synchronize()
    assert host.tolist() == [7] * 8


def test_an_event_is_waited_for_where_it_was_recorded(device: FakeDevice) -> None:
    driver, address = device.driver, device.allocate(1, "a test")
    _, event = driver.cuEventCreate(0)
    driver.cuEventSynchronize(event)
    assert driver.time == 0, "one that was never recorded is not waited for"
    driver.cuEventRecord(event, device.stream)
    device.fill(address, 7, 1, 1)
    driver.cuEventSynchronize(event)
    assert device.view(address, 1).tolist() == [0]


def test_a_copy_that_is_not_yet_done_sees_what_is_written_meanwhile(device: FakeDevice) -> None:
    """What a host that forgets to wait does to its own inputs."""
    address, host = device.allocate(8, "a test"), device.pinned(8)
    host[:] = 1
    device.copy(address, host.ctypes.data, 8)
    host[:] = 2
    device.synchronize()
    assert device.view(address, 8).tolist() == [2] * 8


def test_the_log(device: FakeDevice) -> None:
    address, host = device.allocate(8, "the cache"), device.pinned(16)

    def work() -> None:
        device.copy(address, host.ctypes.data, 8)
        device.enqueue("execute model", lambda: None)

    work()
    device.synchronize()
    device.launch(device.capture(work))
    device.fill(address, 0, 4, 2)
    device.close()
    assert device.log == [
        *("allocate 8 for the cache", "pinned 16", "copy 8", "execute model", "wait"),
        *("capture", "captured copy 8", "captured execute model", "end of capture", "launch", "fill 4 x 2", "close"),
    ]


def test_work_of_a_library_runs_in_its_turn_and_again_in_each_replay(device: FakeDevice) -> None:
    address, seen = device.allocate(1, "a test"), []
    value = device.pinned(1)

    def work() -> None:
        device.copy(address, value.ctypes.data, 1)
        device.enqueue("look", lambda: seen.append(int(device.view(address, 1)[0])))
        device.fill(address, 0, 1, 1)

    graph = device.capture(work)
    device.synchronize()
    assert seen == []
    for number in (3, 4):
        value[:] = number
        device.launch(graph)
        device.synchronize()
    assert seen == [3, 4]


def test_the_checks_of_what_a_graph_holds_come_with_its_launch(device: FakeDevice) -> None:
    launched: list[str] = []
    device.enqueue("eager", lambda: None, lambda: launched.append("eager"))
    first = device.capture(lambda: device.enqueue("first", lambda: None, lambda: launched.append("first")))
    second = device.capture(lambda: device.enqueue("second", lambda: None, lambda: launched.append("second")))
    assert launched == []
    device.launch(second)
    device.launch(first)
    assert launched == ["second", "first"]


MISTAKES: dict[str, tuple[Callable[[FakeDevice, int, int], object], str]] = {
    "over the end of the source": (
        lambda device, to, source: device.copy(to, source + 1, 8),
        "8 bytes at 1 run over the end",
    ),
    "over the end of the target": (
        lambda device, to, source: device.copy(to + 4, source, 5),
        "5 bytes at 4 run over the end",
    ),
    "a fill over the end": (lambda device, to, source: device.fill(to, 0, 3, 4), "12 bytes at 0 run over the end"),
    "from nowhere": (lambda device, to, source: device.copy(to, 256, 8), "nothing is allocated there"),
    "from pageable memory": (
        lambda device, to, source: device.copy(to, np.zeros(8).ctypes.data, 8),
        "nothing is allocated there",
    ),
    "onto itself": (
        lambda device, to, source: device.copy(to, to + 4, 4) or device.copy(to, to + 2, 4),
        "the ends of a copy overlap",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_copies_that_a_gpu_may_do_in_silence(device: FakeDevice, mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(AssertionError, match=message):
        call(device, device.allocate(8, "a test"), device.pinned(8).ctypes.data)


@pytest.mark.parametrize("call", [lambda device: device.allocate(8, "a test"), lambda device: device.pinned(8)])
def test_memory_cannot_be_had_during_a_capture(device: FakeDevice, call: Callable[[FakeDevice], object]) -> None:
    with refused(EngineError, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        device.capture(lambda: call(device) and None)
    assert not device.capturing
    call(device)


def test_waiting_during_a_capture(device: FakeDevice) -> None:
    with refused(EngineError, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cuEventSynchronize"):
        device.capture(device.synchronize)


def test_memory_ends(device: FakeDevice) -> None:
    device.allocate(1 << 15, "the target's cache")
    device.allocate(1 << 14, "the draft's cache")
    with refused(EngineError, "32.0", code="out_of_device_memory"):
        device.allocate(1 << 15, "the logits")
    device.allocate(1 << 14, "the logits")


def test_memory_is_given_back(device: FakeDevice) -> None:
    address, host = device.allocate(8, "a test"), device.pinned(8)
    device.close()
    assert device.driver.live == {}
    assert device.driver.free == device.driver.total
    assert host.tolist() == [0xDD] * 8, "what is read after closing is rubbish"
    with pytest.raises(AssertionError):
        device.view(address, 8)
    with refused(EngineError, "Orin"):
        device.synchronize()
    device.close()


@pytest.mark.parametrize("size", [1, 255, 257])
def test_allocations_are_aligned(size: int) -> None:
    memory = HostMemory()
    assert {memory.allocate(size) % ALIGNMENT for _ in range(5)} == {0}


def test_the_package_knows_nothing_of_it() -> None:
    modules = [
        path for folder in ("engines", "runtime", "calibration", "exporter") for path in (ROOT / folder).rglob("*.py")
    ]
    assert not [path for path in (*modules, *ROOT.glob("*.py")) if "from support" in path.read_text(encoding="utf-8")]
