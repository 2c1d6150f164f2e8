"""A plan as it is loaded and bound: what is refused, and with which words; what is released, and when."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from specexport.bundle import CacheLayer, Contract
from specexport.engines.cuda.protocol import Address
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.compile import model_profiles
from specexport.engines.tensorrt.plan import LoadedPlan
from specexport.errors import EngineError
from support import fake_tensorrt
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan
from support.fake_tensorrt_types import (
    DynamicShapesKernelSpecializationStrategy,
    ExecutionContextAllocationStrategy,
    Severity,
)
from support.micro import Micro, graph
from support.refusals import refused

CONTRACT = Contract(capacity=16, max_draft_tokens=1, prompt_chunk=4, precision="fp32")
MODEL = Micro(layers=(CacheLayer(2, 4),), vocab_size=5)
SCRATCH = 4096
RULE = """<ir_version: 8, opset_import: ["": 18]>
rule (float[2, 3] x, bool[1] go, int64[4] count, int32[1] small)
    => (float[2, 3] y, bool[1] went, int64[4] counted, int32[1] little) {
    y = Neg (x)
    went = Not (go)
    counted = Neg (count)
    little = Neg (small)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans of a model in both dialects, and of a rule."""
    folder = tmp_path_factory.mktemp("plans")
    for dialect in ("onnx", "rows"):
        onnx.save(graph(MODEL, CONTRACT, dialect), folder / f"{dialect}.onnx")
        (folder / f"{dialect}.plan").write_bytes(
            plan(folder / f"{dialect}.onnx", model_profiles(CONTRACT), device_memory=SCRATCH)
        )
    onnx.save(onnx.parser.parse_model(RULE), folder / "rule.onnx")
    (folder / "rule.plan").write_bytes(plan(folder / "rule.onnx"))
    return folder


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


class Loaded:
    """A plan, and addresses that fit."""

    def __init__(
        self, device: FakeDevice, file: Path, settings: Callable[[Any, Path], Any] | None = None, rtx: bool = False
    ) -> None:
        self.device, self.library = device, Library("tensorrt", FakeTensorRT(device, "10.16.1", rtx=rtx))
        self.plan = LoadedPlan(self.library, file, device, settings)
        cache = 4 * 2 * 16 * 4
        sizes = {
            "tokens": 32,
            "position": 8,
            "columns": 128,
            "logits": 4 * 2 * 5,
            "past.0.key": cache,
            "past.0.value": cache,
        }
        sizes |= {name: 4 * 2 * 4 * 4 for name in self.plan.outputs if name.startswith("new.")}
        self.addresses = {name: device.allocate(size, name) for name, size in sizes.items()}
        for name in self.plan.outputs:
            if name.startswith("present."):
                self.addresses[name] = self.addresses[name.replace("present", "past")]
        self.scratch = device.allocate(SCRATCH, "scratch")
        device.synchronize()
        self.write("columns", np.arange(16))
        device.log.clear()

    def bind(self, width: int = 2, span: int = 16, profile: int | None = None, **addresses: int) -> Callable[[], None]:
        shapes = {"tokens": (1, width), "columns": (span,)}
        places = self.addresses | {name: Address(address) for name, address in addresses.items()}
        return self.plan.bind(
            CONTRACT.widths.index(width) if profile is None else profile, shapes, places, self.scratch
        )

    def write(self, name: str, values: Any) -> None:
        content = np.asarray(values, np.int64)
        self.device.view(self.addresses[name], content.nbytes)[:] = content.view(np.uint8)

    def logits(self, rows: int) -> np.ndarray:
        return self.device.view(self.addresses["logits"], 4 * rows * 5).view(np.float32).reshape(rows, 5)


@pytest.fixture
def loaded(device: FakeDevice, folder: Path) -> Loaded:
    return Loaded(device, folder / "onnx.plan")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Loading.


def test_what_a_plan_tells(loaded: Loaded, folder: Path, device: FakeDevice) -> None:
    assert loaded.plan.inputs == ["tokens", "position", "columns", "past.0.key", "past.0.value"]
    assert loaded.plan.outputs == ["logits", "present.0.key", "present.0.value"]
    assert loaded.plan.scratch_bytes == SCRATCH
    assert loaded.plan.shape("past.0.key") == (1, 2, 16, 4)
    assert loaded.plan.shape("tokens") == (1, -1)
    rule = LoadedPlan(loaded.library, folder / "rule.plan", device)
    arrays = {name: rule.array(name) for name in (*rule.inputs, *rule.outputs)}
    assert arrays == {
        "x": (np.float32, 6),
        "go": (np.bool_, 1),
        "count": (np.int64, 4),
        "small": (np.int32, 1),
        "y": (np.float32, 6),
        "went": (np.bool_, 1),
        "counted": (np.int64, 4),
        "little": (np.int32, 1),
    }


def test_what_is_no_plan_is_refused_with_the_librarys_reason(device: FakeDevice, tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(b"no plan")
    library = Library("tensorrt", FakeTensorRT(device))
    assert refusal(lambda: LoadedPlan(library, file, device)) == f"{file} cannot be loaded: the plan is malformed"


def test_the_reason_is_none_that_was_logged_before(device: FakeDevice, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(b"no plan")
    library = Library("tensorrt", FakeTensorRT(device))
    library.logger.log(Severity.ERROR, "of another plan")
    assert refusal(lambda: LoadedPlan(library, file, device)).endswith("the plan is malformed")
    loaded = Loaded(device, folder / "onnx.plan")
    loaded.library.logger.log(Severity.ERROR, "of another plan")
    assert ": no profile 3: onnx: there is no optimization profile 3 (" in refusal(lambda: loaded.bind(profile=3))


def test_a_plan_of_another_version(device: FakeDevice, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(plan(folder / "onnx.onnx", version="10.15.0"))
    library = Library("tensorrt", FakeTensorRT(device))
    assert "expecting library version 10.16.1 got 10.15.0" in refusal(lambda: LoadedPlan(library, file, device))


def no_engine(self: Any, serialized_engine: Any) -> None:
    self._error("out of memory")


def test_a_plan_that_the_device_has_no_room_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said of a plan that could not be loaded and is larger than what is free; else the library's own reason is."""
    monkeypatch.setattr(fake_tensorrt.Runtime, "deserialize_cuda_engine", no_engine)
    file = folder / "onnx.plan"
    size = file.stat().st_size
    device = FakeDevice(memory=size - 1)
    library = Library("tensorrt", FakeTensorRT(device))
    message = refusal(lambda: LoadedPlan(library, file, device))
    assert re.match(
        r"out of device memory for onnx\.plan.*: \d+ bytes requested, \d+ bytes of \d+ bytes free; ", message
    )
    assert f": {size} bytes requested, {size - 1} bytes of {size - 1} bytes free; " in message
    for option in ("--precision", "--weight-streaming", "close other programs that use the GPU"):
        assert option in message
    assert (
        refusal(lambda: LoadedPlan(library, file, FakeDevice(memory=size))) == f"{file} cannot be loaded: out of memory"
    )


class Streaming:
    """Makes the weights of every plan streamable; budgets: what was set."""

    def __init__(self, patch: pytest.MonkeyPatch, automatic: int) -> None:
        self.budgets: list[int] = []
        kind = fake_tensorrt.ICudaEngine
        patch.setattr(kind, "streamable_weights_size", 1 << 30, raising=False)
        patch.setattr(kind, "get_weight_streaming_automatic_budget", lambda engine: automatic, raising=False)
        budget = property(lambda engine: self.budgets, lambda engine, size: self.budgets.append(size))
        patch.setattr(kind, "weight_streaming_budget_v2", budget, raising=False)
        # A smaller budget needs other scratch memory, which is known only then.
        patch.setattr(kind, "device_memory_size_v2", property(lambda engine: 8192 if self.budgets else 4096))


def test_weights_that_may_be_streamed_get_their_budget_before_there_is_a_context(
    device: FakeDevice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streaming = Streaming(monkeypatch, automatic=60)
    loaded = LoadedPlan(Library("tensorrt", FakeTensorRT(device)), folder / "onnx.plan", device)
    assert (streaming.budgets, loaded.scratch_bytes) == ([60], 8192)
    monkeypatch.setattr(fake_tensorrt.ICudaEngine, "streamable_weights_size", 0)
    LoadedPlan(Library("tensorrt", FakeTensorRT(device)), folder / "onnx.plan", device)
    assert streaming.budgets == [60]


@pytest.mark.parametrize(("reserved", "budget"), [(0, 300), (100, 200), (99, 201), (300, 0), (5000, 0)])
def test_weights_that_may_be_streamed_leave_what_others_need(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reserved: int, budget: int
) -> None:
    """And need not fit, which is what they are for."""
    streaming = Streaming(monkeypatch, automatic=10_000)
    device = FakeDevice(memory=300)
    assert (folder / "onnx.plan").stat().st_size > 300
    LoadedPlan(Library("tensorrt", FakeTensorRT(device)), folder / "onnx.plan", device, reserved=reserved)
    assert streaming.budgets == [budget]


# Contexts.


def test_a_pass_runs_in_the_memory_that_it_was_bound_to(loaded: Loaded) -> None:
    enqueue = loaded.bind()
    loaded.write("tokens", [3, 1])
    loaded.write("position", [0])
    enqueue()
    loaded.device.synchronize()
    first = loaded.logits(2).copy()
    assert first.any()
    loaded.write("tokens", [1, 3])
    enqueue()
    loaded.device.synchronize()
    assert not np.array_equal(loaded.logits(2)[0], first[0])


def test_every_binding_has_a_context_of_its_own_with_the_one_scratch_memory(loaded: Loaded) -> None:
    log = loaded.device.log
    loaded.bind(2, 16)
    assert log[:2] == [f"scratch onnx {SCRATCH}", "profile onnx 1"]
    assert log[2] == "wait"
    assert {line for line in log if line.startswith("shape")} == {"shape onnx.tokens [1, 2]", "shape onnx.columns [16]"}
    bound = [line for line in log if line.startswith("bind")]
    assert sorted(bound) == sorted(f"bind onnx.{name}" for name in loaded.addresses)
    log.clear()
    one, other = loaded.bind(1, 16), loaded.bind(4, 16)
    assert log.count(f"scratch onnx {SCRATCH}") == 2
    log.clear()
    for enqueue in (one, other, one):
        enqueue()
    narrow, wide = "execute onnx 0 tokens[1, 1] columns[16]", "execute onnx 2 tokens[1, 4] columns[16]"
    assert log == [narrow, wide, narrow]
    loaded.device.synchronize()


def test_nothing_is_enqueued_by_binding(loaded: Loaded) -> None:
    loaded.bind()
    assert not [line for line in loaded.device.log if line.startswith("execute")]


def test_contexts_take_memory_that_the_caller_gives(
    device: FakeDevice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    create = fake_tensorrt.ICudaEngine.create_execution_context
    monkeypatch.setattr(
        fake_tensorrt.ICudaEngine,
        "create_execution_context",
        lambda self, argument: given.append(argument) or create(self, argument),
    )
    Loaded(device, folder / "onnx.plan").bind()
    assert given == [ExecutionContextAllocationStrategy.USER_MANAGED]


def test_settings_are_made_once_and_given_to_each_context(
    device: FakeDevice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def settings(engine: Any, file: Path) -> Any:
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(ExecutionContextAllocationStrategy.USER_MANAGED)
        made.append((config, file))
        return config

    given: list[Any] = []
    create = fake_tensorrt.ICudaEngine.create_execution_context
    monkeypatch.setattr(
        fake_tensorrt.ICudaEngine,
        "create_execution_context",
        lambda self, argument: given.append(argument) or create(self, argument),
    )
    loaded = Loaded(device, folder / "onnx.plan", settings)
    loaded.bind(1)
    loaded.bind(2)
    ((config, file),) = made
    assert file == folder / "onnx.plan"
    assert given == [config, config]


def test_names_that_do_not_match(loaded: Loaded) -> None:
    for change in ("missing", "unknown"):
        addresses = dict(loaded.addresses)
        addresses["past.1.key"] = addresses["past.0.key"]
        if change == "missing":
            del addresses["past.1.key"], addresses["columns"]
        message = refusal(lambda addresses=addresses: loaded.plan.bind(1, {}, addresses, loaded.scratch))  # type: ignore[misc]
        name = "columns" if change == "missing" else "past.1.key"
        assert message.endswith(f"onnx.plan: inputs and outputs {name} do not match; compile the bundle again")


@pytest.mark.parametrize("name", ["tokens", "past.0.key", "logits"])
def test_an_address_that_is_not_aligned(loaded: Loaded, name: str) -> None:
    with refused(EngineError, "256"):
        loaded.bind(**{name: loaded.addresses[name] + 8})


def test_a_cache_that_is_not_updated_in_place(loaded: Loaded) -> None:
    other = loaded.device.allocate(512, "another cache")
    message = refusal(lambda: loaded.bind(**{"present.0.value": other}))
    assert message.endswith("present.0.value is past.0.value updated in place, and must be bound to its memory")


@pytest.mark.parametrize("version", ["10.16.1", "10.3.0"])
def test_a_cache_that_the_plan_copies(device: FakeDevice, folder: Path, tmp_path: Path, version: str) -> None:
    """Compiled from a graph without TensorScatter, or by a version that has none: wrong tokens without an error."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    model (float[1, 1, 4, 2] past) => (float[1, 1, 4, 2] present) { present = Neg (past) }"""
    model = onnx.parser.parse_model(text)
    for names, name in ((model.graph.node[0].input, "past.0.key"), (model.graph.node[0].output, "present.0.key")):
        names[:] = [name]
    model.graph.input[0].name, model.graph.output[0].name = "past.0.key", "present.0.key"
    onnx.save(model, tmp_path / "copy.onnx")
    (tmp_path / "copy.plan").write_bytes(plan(tmp_path / "copy.onnx", version=version))
    loaded = LoadedPlan(Library("tensorrt", FakeTensorRT(device, version)), tmp_path / "copy.plan", device)
    cache, scratch = device.allocate(32, "a cache"), device.allocate(4096, "scratch")
    message = refusal(lambda: loaded.bind(0, {}, {"past.0.key": cache, "present.0.key": cache}, scratch))
    assert message.endswith("copy.plan: present.0.key is not a cache updated in place; compile the bundle again")


def test_new_rows_need_no_alias(device: FakeDevice, folder: Path) -> None:
    loaded = Loaded(device, folder / "rows.plan")
    loaded.bind()()
    device.synchronize()
    assert loaded.logits(2).any()


def test_a_library_that_gives_no_context(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Any, argument: Any) -> None:
        self._runtime._error("no memory for a context")

    monkeypatch.setattr(fake_tensorrt.ICudaEngine, "create_execution_context", nothing)
    message = refusal(loaded.bind)
    assert re.search(
        r"onnx\.plan: no execution context: no memory for a context "
        r"\(102\d\.\d MiB of 1\.0 GiB of device memory free\)$",
        message,
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"profile": 3}, "no profile 3: onnx: there is no optimization profile 3"),
        ({"width": 2, "profile": 2}, "tokens cannot have the shape [1, 2]: onnx: tokens cannot have the shape (1, 2)"),
        ({"span": 17}, "columns cannot have the shape [17]: "),
    ],
)
def test_what_the_library_refuses_to_bind(loaded: Loaded, change: dict[str, int], problem: str) -> None:
    assert f"onnx.plan: {problem}" in refusal(lambda: loaded.bind(**change))


def test_an_input_whose_shape_nobody_gave(loaded: Loaded) -> None:
    message = refusal(lambda: loaded.plan.bind(1, {"tokens": (1, 2)}, loaded.addresses, loaded.scratch))
    assert "onnx.plan: no shape is known for columns: it gave no reason (" in message


def test_an_output_that_does_not_fit_its_memory(loaded: Loaded) -> None:
    """More rows of logits than the buffer has would be written over what lies behind it."""
    shapes = {"tokens": (1, 2), "columns": (16,)}
    for given in ((1, 1, 5), (1, 2, 6), (2, 5)):
        message = refusal(
            lambda given=given: loaded.plan.bind(1, shapes, loaded.addresses, loaded.scratch, {"logits": given})  # type: ignore[misc]
        )
        assert f"onnx.plan: logits has the shape [1, 2, 5], expected {list(given)}: " in message
    loaded.plan.bind(1, shapes, loaded.addresses, loaded.scratch, {"logits": (1, 2, 5)})


def test_an_address_that_is_refused(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "support.fake_context.IExecutionContext.set_tensor_address", lambda self, name, memory: name != "logits"
    )
    assert "onnx.plan: logits cannot be bound: " in refusal(loaded.bind)


def test_a_pass_that_cannot_be_captured_is_refused_when_it_is_bound(device: FakeDevice, folder: Path) -> None:
    """Not when the first request has come so far."""

    def lazy(engine: Any, file: Path) -> Any:
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(ExecutionContextAllocationStrategy.USER_MANAGED)
        config.dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY
        return config

    loaded = Loaded(device, folder / "onnx.plan", lazy, rtx=True)
    assert "onnx.plan: its work cannot be captured as a CUDA graph: " in refusal(loaded.bind)


def test_a_pass_that_cannot_be_enqueued(loaded: Loaded) -> None:
    """What TensorRT answers with False: without the check, tokens would be made of what the buffers held."""
    enqueue = loaded.bind(tokens=0)
    message = refusal(enqueue)
    assert "onnx.plan: the pass could not be enqueued: onnx: no address is set for tokens (" in message


# Release.


def test_contexts_go_before_their_engine_and_the_engine_before_the_runtime(loaded: Loaded) -> None:
    gone: list[str] = []
    enqueues = [loaded.bind(1), loaded.bind(2)]
    parts = {"context": [*loaded.plan._contexts], "engine": [loaded.plan._engine], "runtime": [loaded.plan._runtime]}
    for kind, things in parts.items():
        for thing in things:
            weakref.finalize(thing, gone.append, kind)
    del parts, things, thing
    loaded.plan.close()
    assert gone == ["context", "context", "engine", "runtime"], (
        "though somebody may still hold what enqueues their passes"
    )
    assert len(enqueues) == 2
    loaded.plan.close()


def test_the_settings_of_contexts_go_too(device: FakeDevice, folder: Path) -> None:
    gone: list[str] = []

    def settings(engine: Any, file: Path) -> Any:
        config = engine.create_runtime_config()
        weakref.finalize(config, gone.append, "settings")
        return config

    loaded = Loaded(device, folder / "onnx.plan", settings)
    loaded.bind()
    loaded.plan.close()
    assert gone == ["settings"]


def test_the_number_of_elements_of_a_scalar(loaded: Loaded) -> None:
    assert loaded.plan.array("position") == (np.int64, 1)
    assert loaded.plan.array("past.0.key")[1] == math.prod((1, 2, 16, 4))
