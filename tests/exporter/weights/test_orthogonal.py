"""Rotations: orthogonal, the same each time, and spreading any channel over all."""

from __future__ import annotations

import math

import pytest
import torch
from specexport.exporter.weights.rotation import Rotation


@pytest.mark.parametrize("width", [1, 2, 7, 32, 96, 576, 896, 2048])
def test_orthogonal_and_spreading(width: int) -> None:
    rotation = Rotation(width)
    matrix = rotation.apply(torch.eye(width))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(width), atol=1e-5, rtol=0)
    odd = width // math.gcd(width, 1 << 30)
    most = math.sqrt((2 if odd > 1 else 1) / width)
    assert float(matrix.abs().max()) <= most * 1.00001
    torch.testing.assert_close(rotation.back(matrix), torch.eye(width), atol=1e-5, rtol=0)


def test_the_same_each_time_and_no_symmetric_matrix() -> None:
    rows = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Rotation(96).apply(rows), Rotation(96).apply(rows))
    # Without signs, a constant row would be gathered in one channel.
    assert float(Rotation(64).apply(torch.ones(64)).abs().max()) < 4
