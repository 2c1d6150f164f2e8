"""Complex tensors as their two halves, for graphs: ONNX has no complex numbers, and some models turn queries and keys
by multiplying with them.

`torch.polar`, `torch.view_as_complex` and `torch.view_as_real` are what such models make them with and read them by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@dataclass(frozen=True)
class Complex:
    """A complex tensor. What it cannot do is an AttributeError or a TypeError, and so a refusal of the model."""

    real: Tensor
    imag: Tensor

    def __mul__(self, other: Complex | Tensor | float) -> Complex:
        if not isinstance(other, Complex):
            return Complex(self.real * other, self.imag * other)
        return Complex(self.real * other.real - self.imag * other.imag, self.real * other.imag + self.imag * other.real)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Complex:
        return Complex(self.real[index], self.imag[index])

    def unsqueeze(self, axis: int) -> Complex:
        return Complex(self.real.unsqueeze(axis), self.imag.unsqueeze(axis))

    @property
    def device(self) -> torch.device:
        return self.real.device

    def to(self, *args: Any, **kwargs: Any) -> Complex:
        """To a device; there is one only."""
        return self


def polar(length: Tensor, angle: Tensor) -> Complex:
    return Complex(length * torch.cos(angle), length * torch.sin(angle))


def view_as_complex(pairs: Tensor) -> Complex:
    """pairs: `[..., 2]`."""
    return Complex(pairs[..., 0], pairs[..., 1])


def view_as_real(number: Complex) -> Tensor:
    return torch.stack([number.real, number.imag], -1)


@contextmanager
def complex_as_pairs() -> Iterator[None]:
    """While the context lasts, torch makes a `Complex` wherever it would make a complex tensor of real ones."""
    with patch.multiple(torch, polar=polar, view_as_complex=view_as_complex, view_as_real=view_as_real):
        yield
