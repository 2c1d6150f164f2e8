"""Orthogonal matrices that spread each channel over all others: a randomized Hadamard transform for any width.

The width is split into powers of two, whose factors are Hadamard matrices (Sylvester's), and an odd rest, whose factor
is a Hartley matrix. Both are symmetric, orthogonal, and have no entry above sqrt(2 / size).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Largest Hadamard factor: products with several small ones are cheaper than with a large one.
LARGEST_FACTOR = 64
SEED = 0


class Rotation:
    """Q = diag(signs) . (F1 x F2 x ...), [H, H], the same for every call with the same width."""

    def __init__(self, width: int) -> None:
        assert width > 0
        generator = torch.Generator().manual_seed(SEED)
        self.signs = torch.randint(0, 2, (width,), generator=generator).float() * 2 - 1
        self.factors = [hadamard(size) if size & (size - 1) == 0 else _hartley(size) for size in _sizes(width)]

    def apply(self, rows: Tensor) -> Tensor:
        """rows . Q, [..., H], computed and returned in fp32."""
        return self._mixed(rows.float() * self.signs)

    def back(self, rows: Tensor) -> Tensor:
        """rows . Q^T."""
        return self._mixed(rows.float()) * self.signs

    def _mixed(self, rows: Tensor) -> Tensor:
        sizes = [factor.shape[0] for factor in self.factors]
        mixed = rows.reshape(-1, *sizes)
        for axis, factor in enumerate(self.factors, 1):
            mixed = (mixed.movedim(axis, -1) @ factor).movedim(-1, axis)
        return mixed.reshape(rows.shape)


def _sizes(width: int) -> list[int]:
    """Factors of the width: powers of two up to LARGEST_FACTOR, then the odd rest."""
    sizes, rest = [], width
    while rest % 2 == 0:
        size = math.gcd(rest, LARGEST_FACTOR)
        sizes.append(size)
        rest //= size
    return [*sizes, rest] if rest > 1 or not sizes else sizes


def hadamard(size: int) -> Tensor:
    """[size, size], symmetric and orthogonal. size: a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def _hartley(size: int) -> Tensor:
    angles = torch.arange(size, dtype=torch.float64)
    angles = torch.outer(angles, angles) * (2 * math.pi / size)
    return ((angles.cos() + angles.sin()) / math.sqrt(size)).float()
