"""onnxruntime on a simulated GPU: a run is work on the device's stream, done when that is waited for."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from specexport.bundle import COUNTS, Contract, ModelSpec, Reads, Role
from specexport.engines.cuda.decoder import DeviceDecoder
from specexport.engines.cuda.engine import OneSpan
from specexport.engines.cuda.hidden import DeviceReader
from specexport.engines.onnxruntime.device_graph import OrtDeviceGraph
from specexport.engines.onnxruntime.graphs import open_session as cpu_session

from support.fake_device import FakeDevice

BYTES = {1: 4, 6: 4, 7: 8, 9: 1, 10: 2, 16: 2}  # of an element, by ONNX's number of its type


class StreamSession:
    """The graph at `path`, computed by the CPU provider over the device's memory. fails: whether its runs are refused.

    What a run reads on the host it reads when it is enqueued, and a captured run for good.
    """

    def __init__(self, path: Path, device: FakeDevice) -> None:
        self._real, self._device, self._name = cpu_session(path, 1), device, path.stem
        self.get_inputs, self.get_outputs = self._real.get_inputs, self._real.get_outputs
        self.fails = False

    def io_binding(self) -> Binding:
        return Binding(self._real, self._device)

    def get_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def run_with_iobinding(self, binding: Binding, options: ort.RunOptions) -> None:
        assert options.get_run_config_entry("gpu_graph_id") == "-1", "ONNX Runtime would capture the run itself"
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1", "the run would wait"
        if self.fails:
            raise RuntimeError("CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=secret")
        read = [array.copy() for array in binding.on_host]

        def run() -> None:
            now = [array.copy() for array in binding.on_host]
            for values in (read, now):
                for array, value in zip(binding.on_host, values, strict=True):
                    array[:] = value
                if values is read:
                    self._real.run_with_iobinding(binding.io)

        self._device.enqueue(f"run {self._name}", run)


class Binding:
    """on_host: the arrays, int64, that are read there."""

    def __init__(self, real: ort.InferenceSession, device: FakeDevice) -> None:
        self.io, self._device = real.io_binding(), device
        self.on_host: list[np.ndarray[Any, Any]] = []

    def bind_input(self, name: str, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> None:
        assert (kind == "cpu") == (name in COUNTS), "ONNX Runtime reads counts on the host, and nothing else"
        if kind == "cpu":
            self.on_host.append(np.ctypeslib.as_array((ctypes.c_int64 * math.prod(shape)).from_address(address)))
        else:
            address = self._here(kind, number, element, shape, address)
        self.io.bind_input(name, "cpu", 0, element, shape, address)

    def bind_output(self, name: str, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> None:
        self.io.bind_output(name, "cpu", 0, element, shape, self._here(kind, number, element, shape, address))

    def _here(self, kind: str, number: int, element: int, shape: Sequence[int], address: int) -> int:
        assert (kind, number) == ("cuda", self._device.index)
        view: np.ndarray[Any, Any] = self._device.view(address, math.prod(shape) * BYTES[element])
        return int(view.ctypes.data)


def device_decoder(
    path: Path,
    spec: ModelSpec,
    contract: Contract,
    role: Role = "target",
    device: FakeDevice | None = None,
    fuse: tuple[Path, Reads, int] | None = None,
) -> DeviceDecoder:
    """fuse: the graph of a draft that reads hidden states, what it reads, and the width of each tap."""
    device = device or FakeDevice()
    contract = OneSpan(**vars(contract))
    scratch = device.allocate(256, "nothing")

    def loaded(file: Path) -> OrtDeviceGraph:
        return OrtDeviceGraph(ort, StreamSession(file, device), file, device)

    reader = DeviceReader(fuse[1], fuse[2], contract, device, scratch, loaded(fuse[0])) if fuse is not None else None
    return DeviceDecoder(role, loaded(path), spec, contract, device, scratch, reader)
