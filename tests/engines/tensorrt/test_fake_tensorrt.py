"""The stand-in for TensorRT: the same names as the real one, the same refusals, and the numbers of ONNX Runtime."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from support import fake_tensorrt
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT
from support.fake_tensorrt_types import OF_RTX, SINCE_10_15, Severity


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


# What it offers.


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def test_every_name_is_one_of_the_real_library(device: FakeDevice) -> None:
    real = pytest.importorskip("tensorrt_rtx")
    assert [name for name in public(FakeTensorRT(device, rtx=True)) if not hasattr(real, name)] == []
    kinds = ["RtxRuntime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache", "ILogger", "Logger"]
    assert [
        f"{kind}.{name}"
        for kind in kinds
        for name in public(getattr(fake_tensorrt, kind))
        if not hasattr(getattr(real, kind.removeprefix("Rtx")), name)
    ] == []
    names = {name for kind in kinds for name in public(getattr(real, kind.removeprefix("Rtx")))} | set(dir(real))
    assert names >= OF_RTX | SINCE_10_15


def test_every_enumeration_has_the_real_values() -> None:
    real = pytest.importorskip("tensorrt_rtx")
    kinds = [
        "TensorIOMode",
        "DataType",
        "ExecutionContextAllocationStrategy",
        "EngineValidity",
        "EngineInvalidityDiagnostics",
    ]
    for kind in [*kinds, "CudaGraphStrategy", "DynamicShapesKernelSpecializationStrategy"]:
        found = {name: int(member) for name, member in getattr(real, kind).__members__.items()}
        assert {member.name: member.value for member in getattr(fake_tensorrt, kind)}.items() <= found.items()
    assert {member.name: member.value for member in Severity} == {
        name: int(value) for name, value in real.ILogger.Severity.__members__.items()
    }


def test_every_function_takes_the_real_arguments() -> None:
    real = pytest.importorskip("tensorrt_rtx")
    for kind in ("RtxRuntime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache"):
        for name in public(getattr(fake_tensorrt, kind)):
            documented = getattr(getattr(real, kind.removeprefix("Rtx")), name).__doc__ or ""
            declared = re.findall(rf"^\d?\.? ?{name}\((.*)\) ->", documented, re.MULTILINE)
            function = getattr(getattr(fake_tensorrt, kind), name)
            if not declared or name == "create_execution_context":
                continue
            ours = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            theirs = [re.findall(r"(?:^|, )(\w+): ", overload)[1:] for overload in declared]
            assert ours in theirs, f"{kind}.{name}"


def test_shapes_compare_as_the_real_ones_do() -> None:
    real = pytest.importorskip("tensorrt_rtx").Dims((1, 2))
    for dims in (fake_tensorrt.Dims((1, 2)), real):
        assert dims == (1, 2)
        assert dims == [1, 2]
        assert (tuple(dims), len(dims), dims[1]) == ((1, 2), 2, 2)
        assert not isinstance(dims, tuple)
        with pytest.raises(TypeError):
            dims == dims  # noqa: B015
