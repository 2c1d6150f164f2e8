"""Small arrays that host and device share."""

from __future__ import annotations

import numpy as np
import pytest
from specexport.engines.cuda.protocol import ALIGNMENT
from specexport.engines.cuda.staging import Page
from support.fake_device import FakeDevice

# Sizes of one byte, of one alignment, and of one byte more.
ARRAYS = [(np.int64, 3), (np.float32, 1), (np.bool_, 256), (np.bool_, 257), (np.int64, 1)]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def page(device: FakeDevice) -> Page:
    return Page(device, "a test's numbers", ARRAYS)


def test_every_slot_is_aligned_and_apart_from_the_others(page: Page) -> None:
    assert all(slot.address % ALIGNMENT == 0 for slot in page.slots)
    ends = [slot.address + slot.host.nbytes for slot in page.slots]
    assert all(end <= following.address for end, following in zip(ends[:-1], page.slots[1:], strict=True))


def test_one_copy_takes_every_slot_to_the_device_and_another_one_back(page: Page, device: FakeDevice) -> None:
    rng = np.random.default_rng(0)
    sent = [rng.integers(0, 2, slot.host.size).astype(slot.host.dtype) for slot in page.slots]
    device.synchronize()
    device.log.clear()
    for slot, values in zip(page.slots, sent, strict=True):
        slot.host[:] = values
    page.send()
    assert not any(device.view(slot.address, slot.host.nbytes).any() for slot in page.slots), (
        "not before it is waited for"
    )
    device.synchronize()
    for slot, values in zip(page.slots, sent, strict=True):
        assert device.view(slot.address, slot.host.nbytes).tobytes() == values.tobytes()
        device.view(slot.address, slot.host.nbytes)[:] = 1
        slot.host[:] = 0
    page.receive()
    device.synchronize()
    for slot in page.slots:
        assert slot.host.view(np.uint8).tolist() == [1] * slot.host.nbytes
    assert device.log == [f"copy {6 * ALIGNMENT}", "wait"] * 2
