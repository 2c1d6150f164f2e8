"""Stands in for the module `tensorrt` or `tensorrt_rtx` without a GPU: what a runtime uses, over a `FakeDevice`.

A plan is a few bytes that name an ONNX graph (`plan`), which ONNX Runtime runs on the CPU in exactly the memory that is
bound. What TensorRT answers with False or None is answered so here, with a line in the log; what it leaves undefined is
an `AssertionError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

from support.fake_context import IExecutionContext
from support.fake_device import FakeDevice
from support.fake_graph import FakeGraph, Shape, load_graph
from support.fake_tensorrt_types import (
    OF_RTX,
    SINCE_10_15,
    CudaGraphStrategy,
    DataType,
    Dims,
    DynamicShapesKernelSpecializationStrategy,
    EngineInvalidityDiagnostics,
    EngineValidity,
    ExecutionContextAllocationStrategy,
    ILogger,
    Part,
    TensorIOMode,
)


def plan(
    graph: Path,
    profiles: Sequence[Mapping[str, tuple[Shape, Shape, Shape]]] = (),
    version: str = "10.16.1",
    compute_capabilities: Sequence[str] = (),
    version_compatible: bool = False,
    device_memory: int = 4096,
) -> bytes:
    """profiles: least, best and largest shape of each input that has a dynamic one.

    compute_capabilities: `8.9`; none for any.
    """
    content = {
        "graph": str(graph),
        "profiles": list(profiles),
        "version": version,
        "compute_capabilities": list(compute_capabilities),
        "version_compatible": version_compatible,
        "device_memory": device_memory,
    }
    return json.dumps(content).encode()


class Runtime(Part):
    logger: Any = None

    def __init__(self, trt: FakeTensorRT, logger: Any) -> None:
        super().__init__(trt)
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        problems = self._problems(serialized_engine)
        for _, text in problems:
            self._error(text)
        return None if problems else ICudaEngine(self, json.loads(bytes(serialized_engine)))

    def _problems(self, blob: Any) -> list[tuple[EngineInvalidityDiagnostics, str]]:
        trt = self._trt
        try:
            content = json.loads(bytes(blob))
        except ValueError:
            return [(EngineInvalidityDiagnostics.MALFORMED_ENGINE, "the plan is malformed")]
        found, problems = content["version"], []
        here, made = (
            version.split(".")[: 1 if content["version_compatible"] else None] for version in (trt.__version__, found)
        )
        if here != made:
            text = f"The engine plan file is not compatible: expecting library version {trt.__version__} got {found}"
            problems.append((EngineInvalidityDiagnostics.VERSION_MISMATCH, text))
        capability = "{}.{}".format(*trt._device.compute_capability)
        if content["compute_capabilities"] and capability not in content["compute_capabilities"]:
            made_for = ", ".join(content["compute_capabilities"])
            text = "The engine plan file is generated on an incompatible device: "
            text += f"expecting compute {capability} got compute {made_for}"
            problems.append((EngineInvalidityDiagnostics.UNSUPPORTED_CC, text))
        return problems

    def _error(self, text: str) -> None:
        self.logger.log(ILogger.Severity.ERROR, text)


class RtxRuntime(Runtime):
    def get_engine_validity(self, buffer: Any) -> tuple[EngineValidity, int]:
        assert self._trt._device.is_current, "it judges the current GPU, which without a context is the first"
        problems = sum(int(kind) for kind, _ in self._problems(buffer))
        return (EngineValidity.INVALID if problems else EngineValidity.VALID), problems


class ICudaEngine(Part):
    def __init__(self, runtime: Runtime, content: dict[str, Any]) -> None:
        super().__init__(runtime._trt)
        self._runtime, self._content = runtime, content
        self._graph: FakeGraph = load_graph(Path(content["graph"]))
        self._profiles = [
            {name: [tuple(shape) for shape in shapes] for name, shapes in profile.items()}
            for profile in content["profiles"] or [{}]
        ]

    @property
    def name(self) -> str:
        return self._graph.name

    @property
    def num_io_tensors(self) -> int:
        return len(self._graph.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    @property
    def device_memory_size_v2(self) -> int:
        return int(self._content["device_memory"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._graph.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        if name not in self._graph.tensors:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if self._graph.tensors[name].is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return getattr(DataType, self._graph.tensors[name].data_type)

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._graph.tensors[name].shape)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [Dims(shape) for shape in self._limits(name, profile_index)]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._graph.aliases.get(name)

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig(self._trt)

    def create_execution_context(self, *arguments: Any, **named: Any) -> IExecutionContext:
        """A strategy or an `IRuntimeConfig`, as the two real ones take it."""
        (given,) = (*arguments, *named.values()) or (ExecutionContextAllocationStrategy.STATIC,)
        assert set(named) <= {"strategy", "runtime_config"}
        if isinstance(given, ExecutionContextAllocationStrategy):
            strategy, given = given, self.create_runtime_config()
            given.set_execution_context_allocation_strategy(strategy)
        return IExecutionContext(self, given)

    def _limits(self, name: str, profile: int) -> list[Shape]:
        """Least, best and largest."""
        tensor = self._graph.tensors[name]
        return self._profiles[profile][name] if -1 in tensor.shape else [tensor.shape] * 3


class IRuntimeConfig(Part):
    cuda_graph_strategy = CudaGraphStrategy.DISABLED
    dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY

    def __init__(self, trt: FakeTensorRT) -> None:
        super().__init__(trt)
        self._strategy = ExecutionContextAllocationStrategy.STATIC
        self._cache: IRuntimeCache | None = None

    def set_execution_context_allocation_strategy(self, strategy: ExecutionContextAllocationStrategy) -> None:
        self._strategy = strategy

    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache(self._trt)

    def set_runtime_cache(self, cache: IRuntimeCache | None = None) -> bool:
        self._cache = cache
        return True

    def get_runtime_cache(self) -> IRuntimeCache | None:
        return self._cache


class IRuntimeCache(Part):
    """What was compiled on this GPU: here a line for each graph that ran, in the order of the first runs."""

    def __init__(self, trt: FakeTensorRT) -> None:
        super().__init__(trt)
        self._content = b""

    def serialize(self) -> bytes:
        return self._header() + self._content

    def deserialize(self, blob: Any) -> bool:
        """Whether it was made by this version on this GPU; else nothing changes."""
        content = bytes(blob)
        if not content.startswith(self._header()):
            return False
        self._content = content.removeprefix(self._header())
        return True

    def _header(self) -> bytes:
        return f"{self._trt.__version__} {self._trt._device.name}\n".encode()

    def _add(self, name: str) -> None:
        if f"{name}\n".encode() not in self._content:
            self._content += f"{name}\n".encode()


def _made_by(runtime: Runtime, trt: FakeTensorRT, logger: Any) -> None:
    Runtime.__init__(runtime, trt, logger)


class FakeTensorRT:
    """The module. rtx: TensorRT-RTX, which has more to offer, and versions of its own.

    version: what plans must be made by.
    """

    TensorIOMode, DataType, Dims, ILogger = TensorIOMode, DataType, Dims, ILogger
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, device: FakeDevice, version: str = "10.16.1", rtx: bool = False) -> None:
        self.__version__ = version
        self._rtx = rtx
        self._device, self._title = device, f"{'tensorrt_rtx' if rtx else 'tensorrt'} {version}"
        self._lacking = set() if rtx else set(OF_RTX)
        if not rtx and tuple(map(int, version.split(".")[:2])) < (10, 15):
            self._lacking |= SINCE_10_15
        self.Runtime = type("Runtime", (RtxRuntime if rtx else Runtime,), {"__init__": partialmethod(_made_by, self)})
        if rtx:
            self.EngineValidity, self.EngineInvalidityDiagnostics = EngineValidity, EngineInvalidityDiagnostics
            self.CudaGraphStrategy = CudaGraphStrategy
            self.DynamicShapesKernelSpecializationStrategy = DynamicShapesKernelSpecializationStrategy
