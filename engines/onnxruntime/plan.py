"""A graph on ONNX Runtime's CUDA provider as a `Plan`: passes that are enqueued on the device's stream, and captured.

The session works on a stream that is given to it, and its runs do not wait. So whoever captures that stream captures
the pass, as a graph of its own or with others around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...errors import EngineError
from ..cuda.protocol import Address, Device
from ..tensorrt.plan import Enqueue
from .graphs import still_open

# ONNX's numbers of the types of inputs and outputs, and numpy's, where it has them.
ELEMENTS: dict[str, tuple[int, DTypeLike | None]] = {
    "tensor(float)": (1, np.float32),
    "tensor(int32)": (6, np.int32),
    "tensor(int64)": (7, np.int64),
    "tensor(bool)": (9, np.bool_),
    "tensor(float16)": (10, np.float16),
    "tensor(bfloat16)": (16, None),
}
# Runs that ONNX Runtime neither captures nor waits for.
RUN_OPTIONS = {"gpu_graph_id": "-1", "disable_synchronize_execution_providers": "1"}


class OrtPlan:
    """session: the graph at `path`, loaded on the device with its stream. capacity: rows of a cache."""

    scratch_bytes = 0  # ONNX Runtime has an arena of its own

    def __init__(self, ort: Any, session: Any, path: Path, device: Device, capacity: int) -> None:
        self._session, self._path, self._device, self._capacity = session, path, device, capacity
        self._options = ort.RunOptions()
        for key, value in RUN_OPTIONS.items():
            self._options.add_run_config_entry(key, value)
        self._tensors = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
        self._bindings: list[Any] = []
        self.inputs = [value.name for value in session.get_inputs()]
        self.outputs = [value.name for value in session.get_outputs()]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else -1 for size in self._tensors[name].shape)

    def least(self, name: str, profile: int) -> int:
        return self._capacity  # attention finds the rows that count by itself

    def array(self, name: str) -> tuple[DTypeLike, int]:
        dtype = ELEMENTS[self._tensors[name].type][1]
        assert dtype is not None
        return dtype, math.prod(self.shape(name))

    def bind(
        self,
        profile: int,
        shapes: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, Address],
        scratch: Address,
        given: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> Enqueue:
        missing = {*self.inputs, *self.outputs} - set(addresses)
        if missing:
            raise EngineError(f"{self._path}: {', '.join(sorted(missing))} cannot be bound; build the bundle again")
        io = still_open(self._session, self._path).io_binding()
        known = {**shapes, **given}
        for names, bind in ((self.inputs, io.bind_input), (self.outputs, io.bind_output)):
            for name in names:
                element = ELEMENTS[self._tensors[name].type][0]
                shape = known.get(name) or self.shape(name)
                bind(name, "cuda", self._device.index, element, list(shape), addresses[name])

        place = len(self._bindings)
        self._bindings.append(io)

        def enqueue() -> None:
            session = still_open(self._session, self._path)
            session.run_with_iobinding(self._bindings[place], self._options)

        return enqueue

    def close(self) -> None:
        """Release the session and what is bound; call it before the device is closed."""
        self._bindings.clear()
        self._session = None
