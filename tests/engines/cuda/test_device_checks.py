"""The checks of tests/gpu/test_driver.py on the simulated device, so that they are right when a GPU is at hand."""

from __future__ import annotations

import pytest
from support.device_checks import CHECKS
from support.fake_device import FakeDevice


@pytest.mark.parametrize("check", CHECKS)
def test_a_device_that_is_not_there(check: str) -> None:
    device = FakeDevice(memory=1 << 28)
    CHECKS[check](device)
    device.close()
    assert device.driver.live == {}
