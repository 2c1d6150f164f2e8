"""The driver layer alone on this host's GPU: memory, copies, graphs and the kernel, without any engine's library."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from specexport.engines.cuda.device import CudaDevice
from specexport.engines.cuda.driver import find_gpu
from specexport.errors import EngineError
from support.device_checks import CHECKS, KIB, random_bytes, received, sent

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    """Skipped with the reason where there is none."""
    try:
        found = CudaDevice()
    except EngineError as error:
        pytest.skip(str(error))
    yield found
    found.close()


@pytest.mark.parametrize("check", CHECKS)
def test_the_gpu(device: CudaDevice, check: str) -> None:
    CHECKS[check](device)


def test_it_is_the_gpu_that_was_found(device: CudaDevice) -> None:
    gpu = find_gpu()
    assert (device.name, device.compute_capability) == (gpu.name, gpu.compute_capability)
    assert device.name
    assert device.compute_capability >= (5, 0)
    assert device.memory()[1] <= gpu.memory


def test_what_was_closed_is_given_back(device: CudaDevice) -> None:
    size = 256 * KIB * KIB
    before, _ = device.memory()
    for _ in range(3):
        other = CudaDevice()
        address = other.allocate(size, "a test")
        other.launch(other.capture(lambda other=other, address=address: other.fill(address, 1, size, 1)))
        other.close()
    after, _ = device.memory()
    assert before - after < size
    assert received(device, sent(device, random_bytes(8)), 8).tolist() == random_bytes(8).tolist(), (
        "the first one goes on"
    )


def test_torch_shares_the_gpus_context(device: CudaDevice) -> None:
    """Both use the primary context, so an address of one is an address of the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("this torch has no CUDA")
    content = random_bytes(KIB)
    tensor = torch.from_numpy(content).cuda()
    torch.cuda.synchronize()
    address = device.allocate(KIB, "a test")
    device.copy(address, tensor.data_ptr(), KIB)
    device.fill(tensor.data_ptr(), 5, 16, 1)
    assert np.array_equal(received(device, address, KIB), content)
    assert tensor.cpu().tolist() == [5] * 16 + content[16:].tolist()
    device.launch(device.capture(lambda: device.copy(tensor.data_ptr(), address, KIB)))
    device.synchronize()
    assert np.array_equal(tensor.cpu().numpy(), content)
