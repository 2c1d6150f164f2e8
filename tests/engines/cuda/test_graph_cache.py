"""Work that fails; what is replayed: support/device_checks.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from specexport.engines.cuda.graph_cache import Replay
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.refusals import refused


class Counters:
    """Work that adds to a number in device memory: what the device did, not what it was asked."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.asked = device, 0
        self.address, self.host = device.allocate(8, "a test"), device.pinned(8).view(np.int64)
        device.synchronize()
        device.log.clear()

    def add(self, number: int) -> Callable[[], None]:
        def work() -> None:
            self.asked += 1
            self.device.enqueue(f"add {number}", self._add(number))
            self.device.copy(self.host.ctypes.data, self.address, 8)

        return work

    def _add(self, number: int) -> Callable[[], None]:
        def run() -> None:
            self.device.view(self.address, 8).view(np.int64)[0] += number

        return run


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def counters(device: FakeDevice) -> Counters:
    return Counters(device)


def test_work_that_fails_is_not_captured(device: FakeDevice, counters: Counters) -> None:
    replay = Replay(device)

    def failing() -> None:
        raise EngineError("the pass could not be enqueued")

    with refused(EngineError, "enqueued"):
        replay.run("one", failing)
    assert "capture" not in device.log
    replay.run("one", counters.add(1))
    replay.run("one", counters.add(1))
    assert counters.host[0] == 2


@pytest.mark.parametrize("function", ["cuStreamBeginCapture", "cuGraphInstantiate"])
def test_a_capture_that_fails_leaves_no_graph(device: FakeDevice, counters: Counters, function: str) -> None:
    replay = Replay(device)
    device.driver.failures[function] = 901
    with refused(EngineError, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        replay.run("one", counters.add(1))
    device.driver.failures.clear()
    replay.run("one", counters.add(1))
    assert counters.host[0] == 2, "done as it is, again"
    replay.run("one", counters.add(1))
    assert counters.host[0] == 3
