"""The stand-in for TensorRT: the same names as the real one, the same refusals, and the numbers of ONNX Runtime."""

from __future__ import annotations

import inspect
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import fake_tensorrt
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan
from support.fake_tensorrt_types import OF_RTX, SINCE_10_15, Severity

# A cache of rows (token, token); logits[t] = token[t] + the sum of the whole cache; last: the last two tokens at most.
MODEL = """
<ir_version: 11, opset_import: ["": 24]>
model (int64[1,T] tokens, int64[1] position, float[1,1,8,2] past)
    => (float[1,T] logits, float[1,R] last, float[1,1,8,2] present)
{
    numbers = Cast<to=1>(tokens)
    axes = Constant<value_ints=[1,3]>()
    column = Unsqueeze(numbers, axes)
    rows = Concat<axis=3>(column, column)
    present = TensorScatter<axis=2, mode="linear">(past, rows, position)
    total = ReduceSum<keepdims=0>(present)
    logits = Add(numbers, total)
    start = Constant<value_ints=[-2]>()
    end = Constant<value_ints=[1000]>()
    along = Constant<value_ints=[1]>()
    last = Slice(numbers, start, end, along)
}
"""
PROFILES = [{"tokens": ((1, 1), (1, 1), (1, 1))}, {"tokens": ((1, 2), (1, 3), (1, 4))}]
CACHE = 4 * 8 * 2


class Log(fake_tensorrt.ILogger):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: int, msg: str) -> None:
        if severity <= Severity.ERROR:
            self.errors.append(msg)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


class Loaded:
    """An engine of the model, a context of its second profile at width 3, and buffers."""

    def __init__(self, device: FakeDevice, model: Path, rtx: bool = False, **options: Any) -> None:
        self.device, self.log = device, Log()
        self.trt = FakeTensorRT(device, "1.7.1" if rtx else "10.16.1", rtx=rtx)
        self.runtime = self.trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(plan(model, PROFILES, self.trt.__version__, **options))
        self.addresses = {
            name: device.allocate(size, name)
            for name, size in {"tokens": 8 * 4, "position": 8, "past": CACHE, "logits": 4 * 4, "last": 8}.items()
        }
        self.addresses["present"] = self.addresses["past"]
        self.scratch = device.allocate(4096, "scratch")
        device.synchronize()
        self.context = self.bind(
            self.engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        )

    def bind(self, context: Any, width: int = 3) -> Any:
        context.set_device_memory(self.scratch, 4096)
        assert context.set_optimization_profile_async(int(width > 1), self.device.stream)
        assert context.set_input_shape("tokens", (1, width))
        for name, address in self.addresses.items():
            assert context.set_tensor_address(name, address)
        return context

    def view(self, name: str, dtype: Any, count: int) -> np.ndarray:
        return self.device.view(self.addresses[name], np.dtype(dtype).itemsize * count).view(dtype)

    def run(self) -> bool:
        return bool(self.context.execute_async_v3(self.device.stream))


@pytest.fixture
def loaded(device: FakeDevice, model: Path) -> Loaded:
    return Loaded(device, model)


# What it offers.


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def test_every_name_is_one_of_the_real_library(device: FakeDevice) -> None:
    real = pytest.importorskip("tensorrt_rtx")
    assert [name for name in public(FakeTensorRT(device, rtx=True)) if not hasattr(real, name)] == []
    kinds = ["Runtime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache", "ILogger", "Logger"]
    assert [
        f"{kind}.{name}"
        for kind in kinds
        for name in public(getattr(fake_tensorrt, kind))
        if not hasattr(getattr(real, kind), name)
    ] == []
    names = {name for kind in kinds for name in public(getattr(real, kind))} | set(dir(real))
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
    for kind in ("Runtime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache"):
        for name in public(getattr(fake_tensorrt, kind)):
            declared = re.findall(
                rf"^\d?\.? ?{name}\((.*)\) ->", getattr(getattr(real, kind), name).__doc__ or "", re.MULTILINE
            )
            function = getattr(getattr(fake_tensorrt, kind), name)
            if not declared or name == "create_execution_context":
                continue
            ours = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            theirs = [re.findall(r"(?:^|, )(\w+): ", overload)[1:] for overload in declared]
            assert ours in theirs, f"{kind}.{name}"


def test_what_other_versions_lack(device: FakeDevice, model: Path) -> None:
    old = FakeTensorRT(device, "10.3.0")
    engine = old.Runtime(Log()).deserialize_cuda_engine(plan(model, PROFILES, "10.3.0"))
    config = engine.create_runtime_config()
    for thing, name in [
        (old, "EngineValidity"),
        (old.Runtime(Log()), "get_engine_validity"),
        (engine, "get_aliased_input_tensor"),
        (engine.create_execution_context(), "is_stream_capturable"),
        (config, "cuda_graph_strategy"),
    ]:
        assert not hasattr(thing, name)
    with pytest.raises(AttributeError):
        config.cuda_graph_strategy = 0
    newer = FakeTensorRT(device, "10.15.0")
    assert hasattr(
        newer.Runtime(Log()).deserialize_cuda_engine(plan(model, PROFILES, "10.15.0")), "get_aliased_input_tensor"
    )


def test_an_attribute_that_is_misspelt(loaded: Loaded) -> None:
    with pytest.raises(AttributeError):
        loaded.context.device_memroy = 5


def test_shapes_compare_as_the_real_ones_do() -> None:
    real = pytest.importorskip("tensorrt_rtx").Dims((1, 2))
    for dims in (fake_tensorrt.Dims((1, 2)), real):
        assert dims == (1, 2)
        assert dims == [1, 2]
        assert (tuple(dims), len(dims), dims[1]) == ((1, 2), 2, 2)
        assert not isinstance(dims, tuple)
        with pytest.raises(TypeError):
            dims == dims  # noqa: B015


# Loading.


def test_a_plan_is_loaded_from_any_buffer(device: FakeDevice, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(plan(model, PROFILES))
    runtime = FakeTensorRT(device).Runtime(Log())
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert runtime.deserialize_cuda_engine(content).name == "model"
    assert runtime.deserialize_cuda_engine(memoryview(file.read_bytes())) is not None


PROBLEMS = {
    "another version": (dict(version="1.6.0"), "expecting library version 1.7.1 got 1.6.0", "VERSION_MISMATCH"),
    "another GPU": (
        dict(version="1.7.1", compute_capabilities=["9.0", "12.0"]),
        "expecting compute 8.9 got compute 9.0, 12.0",
        "UNSUPPORTED_CC",
    ),
    "another major version": (dict(version="2.7.1", version_compatible=True), "got 2.7.1", "VERSION_MISMATCH"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_plan_for_something_else(device: FakeDevice, model: Path, problem: str) -> None:
    options, message, kind = PROBLEMS[problem]
    log = Log()
    trt = FakeTensorRT(device, "1.7.1", rtx=True)
    runtime = trt.Runtime(log)
    assert runtime.get_engine_validity(plan(model, **options)) == (
        trt.EngineValidity.INVALID,
        trt.EngineInvalidityDiagnostics[kind],
    )
    assert log.errors == []
    assert runtime.deserialize_cuda_engine(plan(model, **options)) is None
    assert len(log.errors) == 1
    assert message in log.errors[0]


def test_plans_that_fit(device: FakeDevice, model: Path) -> None:
    trt = FakeTensorRT(device, "1.7.1", rtx=True)
    for blob in (
        plan(model, version="1.7.1", compute_capabilities=["8.9"]),
        plan(model, version="1.2.3", version_compatible=True),
    ):
        assert trt.Runtime(Log()).get_engine_validity(blob) == (trt.EngineValidity.VALID, 0)


def test_what_is_no_plan(device: FakeDevice) -> None:
    log = Log()
    trt = FakeTensorRT(device, rtx=True)
    assert trt.Runtime(log).deserialize_cuda_engine(b"\0junk") is None
    assert log.errors == ["the plan is malformed"]
    assert trt.Runtime(log).get_engine_validity(b"junk") == (
        trt.EngineValidity.INVALID,
        trt.EngineInvalidityDiagnostics.MALFORMED_ENGINE,
    )


def test_what_an_engine_tells(loaded: Loaded) -> None:
    engine, trt = loaded.engine, loaded.trt
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    assert names == ["tokens", "position", "past", "logits", "last", "present"]
    assert [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT] == names[:3]
    assert engine.get_tensor_mode("nothing") == trt.TensorIOMode.NONE
    assert [engine.get_tensor_dtype(name).name for name in names] == [
        "INT64",
        "INT64",
        "FLOAT",
        "FLOAT",
        "FLOAT",
        "FLOAT",
    ]
    assert [tuple(engine.get_tensor_shape(name)) for name in names[:4]] == [(1, -1), (1,), (1, 1, 8, 2), (1, -1)]
    assert engine.num_optimization_profiles == 2
    assert [tuple(shape) for shape in engine.get_tensor_profile_shape("tokens", 1)] == [(1, 2), (1, 3), (1, 4)]
    assert [tuple(shape) for shape in engine.get_tensor_profile_shape("position", 1)] == [(1,)] * 3
    assert {name: engine.get_aliased_input_tensor(name) for name in names if engine.get_aliased_input_tensor(name)} == {
        "present": "past"
    }
    assert engine.device_memory_size_v2 == engine.get_device_memory_size_for_profile_v2(0) == 4096


# Running.


def test_a_pass_computes_in_the_memory_that_is_bound(loaded: Loaded) -> None:
    loaded.view("tokens", np.int64, 3)[:] = [1, 2, 3]
    loaded.view("position", np.int64, 1)[:] = 4
    loaded.view("past", np.float32, 16)[:2] = 10
    loaded.device.view(loaded.scratch, 1)[0] = 1
    assert loaded.run()
    assert not loaded.view("logits", np.float32, 3).any(), "nothing has been waited for"
    loaded.device.synchronize()
    assert loaded.view("past", np.float32, 16).tolist() == [10, 10, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0]
    assert loaded.view("logits", np.float32, 4).tolist() == [33, 34, 35, 0]
    assert loaded.view("last", np.float32, 2).tolist() == [2, 3]
    assert loaded.device.view(loaded.scratch, 4096).tolist() == [0xA5] * 4096, "scratch memory is written over"
    assert loaded.log.errors == []
    assert loaded.device.log[-2:] == ["execute model 1 tokens[1, 3]", "wait"]


def test_what_is_bound_stands_in_the_log(loaded: Loaded) -> None:
    start = loaded.device.log.index("wait") + 1
    bound = [f"bind model.{name}" for name in loaded.addresses]
    assert loaded.device.log[start:] == ["scratch model 4096", "profile model 1", "shape model.tokens [1, 3]", *bound]
    loaded.bind(loaded.context)
    assert len(loaded.device.log) == start + 3 + len(bound), "what is no change is no line"


def test_shapes_of_outputs_follow_those_of_inputs(loaded: Loaded) -> None:
    context = loaded.context
    assert [tuple(context.get_tensor_shape(name)) for name in ("tokens", "logits", "last", "present")] == [
        (1, 3),
        (1, 3),
        (1, 2),
        (1, 1, 8, 2),
    ]
    assert context.infer_shapes() == []
    assert context.set_optimization_profile_async(0, loaded.device.stream)
    assert context.infer_shapes() == ["tokens"]
    assert tuple(context.get_tensor_shape("tokens")) == tuple(context.get_tensor_shape("logits")) == (1, -1)
    assert context.set_input_shape("tokens", (1, 1))
    assert tuple(context.get_tensor_shape("last")) == (1, 1)
    assert context.get_tensor_address("tokens") == loaded.addresses["tokens"], "addresses outlast a profile"


@pytest.mark.parametrize("element", ["float", "float16", "bfloat16", "int64", "int32", "bool"])
def test_every_type_is_handed_through(device: FakeDevice, tmp_path: Path, element: str) -> None:
    path = tmp_path / "copy.onnx"
    onnx.save(
        onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["": 18]> copy ({element}[4] x) => ({element}[4] y) {{ y = Identity(x) }}'
        ),
        path,
    )
    engine = FakeTensorRT(device).Runtime(Log()).deserialize_cuda_engine(plan(path, device_memory=0))
    context = engine.create_execution_context()
    size = 4 * {"FLOAT": 4, "HALF": 2, "BF16": 2, "INT64": 8, "INT32": 4, "BOOL": 1}[engine.get_tensor_dtype("x").name]
    x, y = device.allocate(size, "x"), device.allocate(size, "y")
    device.synchronize()
    device.view(x, size)[:] = np.arange(size) % 2
    assert context.set_tensor_address("x", x)
    assert context.set_tensor_address("y", y)
    assert context.execute_async_v3(device.stream)
    device.synchronize()
    assert device.view(y, size).tolist() == device.view(x, size).tolist()


def test_a_graph_is_replayed(loaded: Loaded) -> None:
    assert loaded.run()
    loaded.device.synchronize()
    graph = loaded.device.capture(lambda: loaded.run() and None)
    assert loaded.device.log[-2:] == ["captured execute model 1 tokens[1, 3]", "end of capture"]
    for position in (0, 3):
        loaded.view("tokens", np.int64, 3)[:] = position + 1
        loaded.view("position", np.int64, 1)[:] = position
        loaded.device.launch(graph)
        loaded.device.synchronize()
    assert loaded.view("past", np.float32, 16)[::2].tolist() == [1, 1, 1, 4, 4, 4, 0, 0]


CHANGES: dict[str, Callable[[Loaded], object]] = {
    "an address": lambda loaded: loaded.context.set_tensor_address(
        "logits", loaded.device.allocate(16, "other logits")
    ),
    "a shape": lambda loaded: loaded.context.set_input_shape("tokens", (1, 2)),
    "a profile": lambda loaded: loaded.context.set_optimization_profile_async(0, loaded.device.stream),
    "its memory": lambda loaded: loaded.context.set_device_memory(loaded.device.allocate(4096, "more"), 4096),
    "a shape, and back": lambda loaded: (
        loaded.context.set_input_shape("tokens", (1, 2)) and loaded.context.set_input_shape("tokens", (1, 3))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_of_a_context_that_has_changed_since(loaded: Loaded, change: str) -> None:
    assert loaded.run()
    graph = loaded.device.capture(lambda: loaded.run() and None)
    CHANGES[change](loaded)
    with pytest.raises(AssertionError, match="holds model as it was before it changed; capture again"):
        loaded.device.launch(graph)
    loaded.bind(loaded.context)
    assert loaded.run()
    loaded.device.launch(loaded.device.capture(lambda: loaded.run() and None))


def test_what_is_set_to_what_it_was_is_no_change(loaded: Loaded) -> None:
    assert loaded.run()
    graph = loaded.device.capture(lambda: loaded.run() and None)
    loaded.bind(loaded.context)
    loaded.device.launch(graph)


# What is refused.

REFUSALS: dict[str, tuple[Callable[[Loaded], object], str]] = {
    "an output's shape": (lambda loaded: loaded.context.set_input_shape("logits", (1, 3)), "logits is no input"),
    "no such input": (lambda loaded: loaded.context.set_input_shape("token", (1, 3)), "token is no input"),
    "below the profile": (
        lambda loaded: loaded.context.set_input_shape("tokens", (1, 1)),
        r"tokens cannot have the shape \(1, 1\): profile 1",
    ),
    "above the profile": (
        lambda loaded: loaded.context.set_input_shape("tokens", (1, 5)),
        r"tokens cannot have the shape \(1, 5\)",
    ),
    "another rank": (
        lambda loaded: loaded.context.set_input_shape("tokens", (1,)),
        r"tokens cannot have the shape \(1,\)",
    ),
    "another static shape": (
        lambda loaded: loaded.context.set_input_shape("position", (2,)),
        r"position cannot have the shape \(2,\)",
    ),
    "no such profile": (
        lambda loaded: loaded.context.set_optimization_profile_async(2, loaded.device.stream),
        "no optimization profile 2",
    ),
    "no such tensor": (lambda loaded: loaded.context.set_tensor_address("token", 256), "no tensor token"),
    "an unset address": (
        lambda loaded: loaded.context.set_tensor_address("last", 0) and loaded.run(),
        "no address is set for last",
    ),
    "an unset shape": (
        lambda loaded: loaded.context.set_optimization_profile_async(0, loaded.device.stream) and loaded.run(),
        "no shape is set for tokens",
    ),
    "a cache that is not in place": (
        lambda loaded: (
            loaded.context.set_tensor_address("present", loaded.device.allocate(CACHE, "a copy")) and loaded.run()
        ),
        "present must be bound to the memory of the cache",
    ),
    "too little scratch memory": (
        lambda loaded: loaded.context.set_device_memory(loaded.scratch, 4095) or loaded.run(),
        "needs 4096 bytes of device memory, and has 4095",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_is_answered_with_false(loaded: Loaded, refusal: str) -> None:
    call, message = REFUSALS[refusal]
    assert call(loaded) is False
    assert len(loaded.log.errors) == 1
    assert re.search(message, loaded.log.errors[0])


def test_a_context_that_has_its_own_memory(loaded: Loaded) -> None:
    context = loaded.engine.create_execution_context()
    loaded.bind(context).set_device_memory(0, 0)
    assert context.execute_async_v3(loaded.device.stream)


def test_a_capture_without_a_warm_up(loaded: Loaded) -> None:
    answers = []
    loaded.device.capture(lambda: answers.append(loaded.run()))
    assert answers == [False]
    assert loaded.run()
    assert loaded.context.set_input_shape("tokens", (1, 2))
    loaded.device.capture(lambda: answers.append(loaded.run()))
    assert answers == [False, False], "another shape needs a warm-up of its own"
    assert loaded.log.errors == ["model: captured before it has run once with these shapes"] * 2


MISTAKES: dict[str, tuple[Callable[[Loaded], object], str]] = {
    "an address in the middle": (
        lambda loaded: loaded.context.set_tensor_address("tokens", loaded.addresses["tokens"] + 8),
        "not a multiple of 256",
    ),
    "scratch in the middle": (lambda loaded: loaded.context.set_device_memory(loaded.scratch + 8, 4096), "not aligned"),
    "the default stream": (lambda loaded: loaded.context.execute_async_v3(0), "not the device's stream"),
    "a buffer too small": (
        lambda loaded: (
            loaded.context.set_tensor_address("logits", loaded.device.allocate(8, "logits")) and loaded.run()
        ),
        "12 bytes at 0 run over the end of an allocation of 8",
    ),
    "an address of nothing": (
        lambda loaded: loaded.context.set_tensor_address("logits", 256) and loaded.run(),
        "nothing is allocated there",
    ),
    "an output over another": (
        lambda loaded: loaded.context.set_tensor_address("last", loaded.addresses["logits"]) and loaded.run(),
        "lies over",
    ),
    "an output over an input": (
        lambda loaded: loaded.context.set_tensor_address("logits", loaded.addresses["tokens"]) and loaded.run(),
        "logits lies over tokens",
    ),
    "scratch over a cache": (
        lambda loaded: (
            loaded.context.set_tensor_address("past", loaded.scratch)
            and loaded.context.set_tensor_address("present", loaded.scratch)
            and loaded.run()
        ),
        "lies over",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_has_no_defined_behaviour(loaded: Loaded, mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(AssertionError, match=message):
        call(loaded)


# TensorRT-RTX.


def test_kernels_that_are_compiled_late_cannot_be_captured(device: FakeDevice, model: Path) -> None:
    loaded = Loaded(device, model, rtx=True)
    assert not loaded.context.is_stream_capturable(device.stream)
    assert loaded.run()
    answers: list[bool] = []
    device.capture(lambda: answers.append(loaded.run()))
    assert answers == [False]
    assert loaded.log.errors == ["model: kernels for these shapes are still being compiled, which cannot be captured"]
    config = loaded.engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(loaded.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    config.dynamic_shapes_kernel_specialization_strategy = loaded.trt.DynamicShapesKernelSpecializationStrategy.EAGER
    loaded.context = loaded.bind(loaded.engine.create_execution_context(runtime_config=config))
    assert loaded.context.is_stream_capturable(device.stream)
    assert loaded.run()
    device.launch(device.capture(lambda: loaded.run() and None))


def test_a_runtime_cache_outlasts_the_engine(device: FakeDevice, model: Path) -> None:
    loaded = Loaded(device, model, rtx=True)
    config = loaded.engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(loaded.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    first, second = config.create_runtime_cache(), config.create_runtime_cache()
    assert config.set_runtime_cache(first)
    assert config.get_runtime_cache() is first
    empty = bytes(first.serialize())
    loaded.context = loaded.bind(loaded.engine.create_execution_context(config))
    assert loaded.run()
    full = bytes(first.serialize())
    assert full != empty
    assert second.deserialize(full)
    assert bytes(second.serialize()) == full
    assert not second.deserialize(b"of another version")
    assert bytes(second.serialize()) == full
    assert first.reset()
    assert bytes(first.serialize()) == empty
