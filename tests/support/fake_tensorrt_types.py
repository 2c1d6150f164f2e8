"""The small types of a fake TensorRT: TensorRT-RTX's own, and what all objects of the fake have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.fake_tensorrt import FakeTensorRT

_real = pytest.importorskip("tensorrt_rtx")
TensorIOMode, DataType, Dims, ILogger = _real.TensorIOMode, _real.DataType, _real.Dims, _real.ILogger
ExecutionContextAllocationStrategy = _real.ExecutionContextAllocationStrategy
EngineValidity, EngineInvalidityDiagnostics = _real.EngineValidity, _real.EngineInvalidityDiagnostics
CudaGraphStrategy = _real.CudaGraphStrategy
DynamicShapesKernelSpecializationStrategy = _real.DynamicShapesKernelSpecializationStrategy

# What only TensorRT-RTX has, and what TensorRT has since 10.15.
OF_RTX = {
    "EngineValidity",
    "EngineInvalidityDiagnostics",
    "CudaGraphStrategy",
    "DynamicShapesKernelSpecializationStrategy",
    "get_engine_validity",
    "is_stream_capturable",
    "cuda_graph_strategy",
    "dynamic_shapes_kernel_specialization_strategy",
    "create_runtime_cache",
    "get_runtime_cache",
    "set_runtime_cache",
}
SINCE_10_15 = {"get_aliased_input_tensor"}


class Part:
    """An object of the library: without what this version lacks, and closed to attributes that it does not have."""

    def __init__(self, trt: FakeTensorRT) -> None:
        self._trt = trt

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._trt._lacking:
            raise AttributeError(f"{type(self).__name__} of {self._trt._title} has no {name}")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            getattr(self, name)
        super().__setattr__(name, value)
