"""The stand-in for a GPU must catch what a GPU would get wrong in silence."""

from __future__ import annotations

import pytest
from support.fake_device import FakeDevice


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(memory=1 << 16, name="Orin", compute_capability=(8, 7))


def test_nothing_is_done_before_it_is_waited_for(device: FakeDevice) -> None:
    address, host = device.allocate(8, "a test"), device.pinned(8)
    device.fill(address, 7, 8, 1)
    device.copy(host.ctypes.data, address, 8)
    assert not host.any()
    device.synchronize()
    assert host.tolist() == [7] * 8


def test_a_copy_that_is_not_yet_done_sees_what_is_written_meanwhile(device: FakeDevice) -> None:
    """What a host that forgets to wait does to its own inputs."""
    address, host = device.allocate(8, "a test"), device.pinned(8)
    host[:] = 1
    device.copy(address, host.ctypes.data, 8)
    host[:] = 2
    device.synchronize()
    assert device.view(address, 8).tolist() == [2] * 8
