"""What a state lies in: an array of the host, or a value on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StateMemory(Protocol):
    def bind(self, io: Any, name: str) -> None:
        """As `past.{name}` and `present.{name}`."""
        ...

    def settle(self) -> None:
        """Behind a pass: what it has written is what the next one reads."""
        ...

    def read(self) -> Array:
        """On the host: a copy, or the memory itself."""
        ...

    def write(self, array: Array) -> None: ...

    def fill(self, value: float) -> None: ...


class HostState:
    """array: the memory. value: makes an OrtValue that aliases an array.

    in_place: whether a graph reads all of the past before it writes the present, so that both are one memory.
    """

    def __init__(self, array: Array, value: Callable[[Array], Any], in_place: bool) -> None:
        self._array, self._value = array, value
        self._written = array if in_place else np.zeros_like(array)

    def bind(self, io: Any, name: str) -> None:
        io.bind_ortvalue_input(f"past.{name}", self._value(self._array))
        io.bind_ortvalue_output(f"present.{name}", self._value(self._written))

    def settle(self) -> None:
        if self._written is not self._array:
            self._array[:] = self._written

    def read(self) -> Array:
        return self._array

    def write(self, array: Array) -> None:
        self._array[:] = array

    def fill(self, value: float) -> None:
        self._array.fill(value)


class DeviceState:
    """In place. array: what it holds first. place: puts an array on the device."""

    def __init__(self, array: Array, place: Callable[[Array], Any]) -> None:
        self._shape, self._dtype, self._value = array.shape, array.dtype, place(array)

    def bind(self, io: Any, name: str) -> None:
        io.bind_ortvalue_input(f"past.{name}", self._value)
        io.bind_ortvalue_output(f"present.{name}", self._value)

    def settle(self) -> None:
        """Nothing is left to do."""

    def read(self) -> Array:
        array: Array = self._value.numpy()
        return array

    def write(self, array: Array) -> None:
        self._value.update_inplace(array)

    def fill(self, value: float) -> None:
        self.write(np.full(self._shape, value, self._dtype))
