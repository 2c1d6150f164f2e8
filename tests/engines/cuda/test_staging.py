"""Small arrays that host and device share; what they hold at either end: support/device_checks.py."""

from __future__ import annotations

import numpy as np
from specexport.engines.cuda.device import ALIGNMENT
from specexport.engines.cuda.staging import Page
from support.fake_device import FakeDevice


def test_slots_are_aligned_and_apart_and_go_by_one_copy() -> None:
    """Of one byte, of one alignment, and of one byte more."""
    device = FakeDevice()
    page = Page(device, "numbers", [(np.int64, 3), (np.float32, 1), (np.bool_, 256), (np.bool_, 257), (np.int64, 1)])
    assert all(slot.address % ALIGNMENT == 0 for slot in page.slots)
    ends = [slot.address + slot.host.nbytes for slot in page.slots]
    assert all(end <= following.address for end, following in zip(ends[:-1], page.slots[1:], strict=True))
    device.log.clear()
    page.send()
    page.receive()
    assert device.log == [f"copy {6 * ALIGNMENT}"] * 2
