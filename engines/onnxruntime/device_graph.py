"""A graph on ONNX Runtime's CUDA provider as a `LoadedGraph`.

The session works on a stream that is given to it, and its runs do not wait. So whoever captures that stream captures
the pass, as a graph of its own or with others around it. See docs/internals/onnxruntime-cuda.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...bundle import COUNTS, Contract, ModelSpec, Reads
from ...errors import BundleError, EngineError
from ..cuda.device import Address, CudaDevice
from ..cuda.driver import size_text
from ..cuda.loaded_graph import Enqueue
from .graphs import check_graph, still_open
from .signatures import fuse_signatures, model_signatures

# ONNX's numbers of the types of inputs and outputs, and numpy's types, where it has them.
ELEMENTS: dict[str, tuple[int, DTypeLike | None]] = {
    "tensor(float)": (1, np.float32),
    "tensor(int32)": (6, np.int32),
    "tensor(int64)": (7, np.int64),
    "tensor(bool)": (9, np.bool_),
    "tensor(float16)": (10, np.float16),
    "tensor(bfloat16)": (16, None),
}
# Of runs: ONNX Runtime captures nothing by itself, and returns before the GPU is done.
RUN_OPTIONS = {"gpu_graph_id": "-1", "disable_synchronize_execution_providers": "1"}


class OrtDeviceGraph:
    """ort: the module onnxruntime. session: the graph at `path`, on the device and its stream.

    Raises `BundleError` for a type that no graph of ours has.
    """

    scratch_bytes = 0  # its arena has the memory

    def __init__(self, ort: Any, session: Any, path: Path, device: CudaDevice) -> None:
        self._session, self._path, self._device = session, path, device
        self._options = ort.RunOptions()
        for key, value in RUN_OPTIONS.items():
            self._options.add_run_config_entry(key, value)
        self._bindings: list[Any] = []
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self.inputs, self.outputs = [value.name for value in inputs], [value.name for value in outputs]
        # Copies: what the session gives keeps it alive, and the GPU's memory with it.
        self._types: dict[str, tuple[int, DTypeLike | None]] = {}
        for value in (*inputs, *outputs):
            if value.type not in ELEMENTS:
                raise BundleError(f"{path}: {value.name} is a {value.type}; build the bundle again")
            self._types[value.name] = ELEMENTS[value.type]
        self._shapes = {
            value.name: tuple(size if isinstance(size, int) else -1 for size in value.shape)
            for value in (*inputs, *outputs)
        }
        self.on_host = frozenset({*COUNTS} & {*self.inputs})  # shapes follow from them

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def least(self, name: str, profile: int) -> int:
        return 0  # any shape will do

    def bind(
        self,
        profile: int,
        shapes: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, Address],
        scratch: Address,
        given: Mapping[str, tuple[int, ...]],
    ) -> Enqueue:
        io = still_open(self._session, self._path).io_binding()
        known = {**shapes, **given}
        for names, bind in ((self.inputs, io.bind_input), (self.outputs, io.bind_output)):
            for name in names:
                where = ("cpu", 0) if name in self.on_host else ("cuda", self._device.index)
                bind(name, *where, self._types[name][0], known.get(name) or self._shapes[name], addresses[name])
        place = len(self._bindings)
        self._bindings.append(io)

        def enqueue() -> None:
            session = still_open(self._session, self._path)
            try:
                session.run_with_iobinding(self._bindings[place], self._options)
            except Exception as error:  # onnxruntime raises its own types straight from C++
                raise explain(error, f"{self._path} failed") from None

        return enqueue

    def close(self) -> None:
        self._bindings.clear()  # which hold the session
        self._session = None

    def check(self, spec: ModelSpec, contract: Contract) -> None:
        """Check a model's inputs and outputs against the manifest. Raises `BundleError`."""
        check_graph(self._path, self._session, model_signatures(spec, contract, "past", "present"))

    def check_fuse(self, reads: Reads, tap_width: int) -> None:
        """The same of a draft's graph that fuses. tap_width: of each tap."""
        check_graph(self._path, self._session, fuse_signatures(reads, tap_width))


OUT_OF_MEMORY = re.compile("Failed to allocate memory|out of memory|ALLOC_FAILED|Available memory of", re.IGNORECASE)
REQUESTED = re.compile(r"requested (?:buffer of size|bytes of) (\d+)")
# The reason in e.g. `... CUDA failure 100: no CUDA-capable device is detected ; GPU=0 ; hostname=... ; file=...`.
FAILURE = re.compile(r"(?:CUDA|CUBLAS|CUDNN) failure \d+: ([^;\n]*)")
# What precedes the reason: a status, or the place and the condition of a failed check.
PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |^.* was false\. ")
NOT_ALL_ON_CUDA = "cannot use the graph capture feature"


def explain(error: Exception, what: str) -> EngineError:
    """The error to raise for an exception of ONNX Runtime. what: what failed, the start of the message."""
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        requested = REQUESTED.search(text)
        size = f", {size_text(int(requested[1]))} more requested" if requested else ""
        return EngineError(
            f"{what}: out of device memory{size}; lower --max-seq-len or --prompt-chunk, or close other programs "
            "that use the "
            "GPU (see nvidia-smi)",
            code="out_of_device_memory",
        )
    if NOT_ALL_ON_CUDA in text:
        return EngineError(
            f"{what}: ONNX Runtime would run parts of it on the CPU, so it cannot be one CUDA graph; "
            "build the bundle again with this version, or use --engine onnxruntime"
        )
    return EngineError(f"{what}: {reason(error)}")


def reason(error: Exception) -> str:
    """CUDA's own message if there is one, else the first line of the exception."""
    text = str(error).strip()
    failure = FAILURE.search(text)
    return failure[1].strip() if failure else PREFIX.sub("", PREFIX.sub("", text.partition("\n")[0]))
