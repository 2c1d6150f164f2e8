"""A graph that a library has loaded onto a GPU: bound once per shape, and enqueued on the device's stream.

Whatever differs from pass to pass lies in buffers with fixed addresses, so that a captured pass can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .device import Address

Enqueue = Callable[[], None]


class LoadedGraph(Protocol):
    """inputs, outputs: their names.

    scratch_bytes: device memory that a pass needs while it runs; passes on one stream can share it.
    on_host: inputs that are read from the host's memory when a pass is enqueued, so that a captured pass is for their
    values alone.
    """

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def on_host(self) -> frozenset[str]: ...

    def least(self, name: str, profile: int) -> int:
        """The first dimension of the smallest shape that a profile has of an input."""
        ...

    def bind(
        self,
        profile: int,
        shapes: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, Address],
        scratch: Address,
        given: Mapping[str, tuple[int, ...]],
    ) -> Enqueue:
        """A function that enqueues one pass.

        profile: which of the contract's widths. shapes: of the inputs with a dynamic shape. addresses: of all inputs
        and outputs. given: shapes that outputs must have, because of the memory that they are bound to.
        Raises `EngineError` if names, shapes or memory do not fit.
        """
        ...

    def close(self) -> None:
        """Release it, before the device is closed. Closing again does nothing."""
        ...
