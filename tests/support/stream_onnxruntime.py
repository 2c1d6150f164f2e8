"""onnxruntime with a provider for a simulated GPU: a run is work on the device's stream, done when that is waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from specexport.engines.onnxruntime.graphs import open_session as cpu_session

from support.fake_device import FakeDevice

BYTES = {1: 4, 6: 4, 7: 8, 9: 1, 10: 2, 16: 2}  # of an element, by ONNX's number of its type


class StreamSession:
    """The graph at `path`, computed by the CPU provider over the device's memory.

    A graph that was captured holds its bindings; runs under another number than -1 and runs that wait are refused.
    """

    def __init__(self, path: Path, device: FakeDevice) -> None:
        self._real, self._device, self._name = cpu_session(path, 1), device, path.stem
        self.get_inputs, self.get_outputs = self._real.get_inputs, self._real.get_outputs

    def io_binding(self) -> Binding:
        return Binding(self._real, self._device)

    def run_with_iobinding(self, binding: Binding, options: ort.RunOptions) -> None:
        assert options.get_run_config_entry("gpu_graph_id") == "-1", "ONNX Runtime would capture the run itself"
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1", "the run would wait"
        self._device.enqueue(f"run {self._name}", lambda: self._real.run_with_iobinding(binding.io))


class Binding:
    def __init__(self, real: ort.InferenceSession, device: FakeDevice) -> None:
        self.io, self._device = real.io_binding(), device

    def bind_input(self, name: str, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> None:
        self.io.bind_input(name, "cpu", 0, element, shape, self._here(kind, number, element, shape, address))

    def bind_output(self, name: str, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> None:
        self.io.bind_output(name, "cpu", 0, element, shape, self._here(kind, number, element, shape, address))

    def _here(self, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> int:
        assert (kind, number) == ("cuda", self._device.index)
        view: np.ndarray[Any, Any] = self._device.view(address, math.prod(shape) * BYTES[element])
        return int(view.ctypes.data)
