"""The small types of a fake TensorRT: enumerations, shapes, loggers, and what all of its objects have in common."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.fake_tensorrt import FakeTensorRT

TensorIOMode = IntEnum("TensorIOMode", {"NONE": 0, "INPUT": 1, "OUTPUT": 2})
DataType = IntEnum(
    "DataType",
    {
        "FLOAT": 0,
        "HALF": 1,
        "BF16": 7,
        "INT8": 2,
        "INT32": 3,
        "INT64": 8,
        "BOOL": 4,
        "UINT8": 5,
        "FP8": 6,
        "INT4": 9,
        "FP4": 10,
    },
)
ExecutionContextAllocationStrategy = IntEnum(
    "ExecutionContextAllocationStrategy", {"STATIC": 0, "ON_PROFILE_CHANGE": 1, "USER_MANAGED": 2}
)
EngineValidity = IntEnum("EngineValidity", {"VALID": 0, "SUBOPTIMAL": 1, "INVALID": 2})
EngineInvalidityDiagnostics = IntFlag(
    "EngineInvalidityDiagnostics",
    {"VERSION_MISMATCH": 1, "UNSUPPORTED_CC": 2, "OLD_CUDA_DRIVER": 4, "MALFORMED_ENGINE": 32},
)
CudaGraphStrategy = IntEnum("CudaGraphStrategy", {"DISABLED": 0, "WHOLE_GRAPH_CAPTURE": 1})
DynamicShapesKernelSpecializationStrategy = IntEnum(
    "DynamicShapesKernelSpecializationStrategy", {"LAZY": 0, "EAGER": 1, "NONE": 2}
)
Severity = IntEnum("Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4})

# What only TensorRT-RTX has, and what TensorRT has since 10.15.
OF_RTX = {
    *(
        "EngineValidity",
        "EngineInvalidityDiagnostics",
        "CudaGraphStrategy",
        "DynamicShapesKernelSpecializationStrategy",
    ),
    *(
        "get_engine_validity",
        "is_stream_capturable",
        "cuda_graph_strategy",
        "dynamic_shapes_kernel_specialization_strategy",
    ),
    *("create_runtime_cache", "get_runtime_cache", "set_runtime_cache"),
}
SINCE_10_15 = {"get_aliased_input_tensor"}


class Dims:
    """A shape, which the real one is too: no tuple, and comparable with tuples and lists only."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> int:
        return self._sizes[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list):
            raise TypeError("__eq__(): incompatible function arguments")
        return self._sizes == tuple(other)

    __hash__ = None  # type: ignore[assignment]


class ILogger:
    Severity = Severity
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self) -> None:
        pass

    def log(self, severity: int, msg: str) -> None:
        raise NotImplementedError


class Logger(ILogger):
    """Says nothing: the real one prints."""

    def __init__(self, min_severity: int = Severity.WARNING) -> None:
        self.min_severity = min_severity

    def log(self, severity: int, msg: str) -> None:
        pass


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
