"""A plan as it is loaded and bound: what is refused, and with which words; what is released, and when."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from specexport.bundle import CacheLayer, Contract
from specexport.engines.cuda.device import Address
from specexport.engines.tensorrt.api import Library
from specexport.engines.tensorrt.compile import model_profiles
from specexport.engines.tensorrt.plan import LoadedPlan
from specexport.errors import EngineError
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT, plan
from support.fake_tensorrt_types import DynamicShapesKernelSpecializationStrategy, ExecutionContextAllocationStrategy
from support.micro import Micro, graph

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
            plan(folder / f"{dialect}.onnx", model_profiles(CONTRACT, "target"), device_memory=SCRATCH)
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
        profile = CONTRACT.widths.index(width) if profile is None else profile
        return self.plan.bind(profile, shapes, places, self.scratch, {})

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


def test_what_is_no_plan_is_refused_with_the_librarys_reason(device: FakeDevice, tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(b"no plan")
    library = Library("tensorrt", FakeTensorRT(device))
    assert refusal(lambda: LoadedPlan(library, file, device)) == f"{file} cannot be loaded: the plan is malformed"


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


def test_names_that_do_not_match(loaded: Loaded) -> None:
    for change in ("missing", "unknown"):
        addresses = dict(loaded.addresses)
        addresses["past.1.key"] = addresses["past.0.key"]
        if change == "missing":
            del addresses["past.1.key"], addresses["columns"]
        message = refusal(lambda addresses=addresses: loaded.plan.bind(1, {}, addresses, loaded.scratch, {}))  # type: ignore[misc]
        name = "columns" if change == "missing" else "past.1.key"
        assert message.endswith(f"onnx.plan: inputs and outputs {name} do not match; compile the bundle again")


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
    message = refusal(lambda: loaded.bind(0, {}, {"past.0.key": cache, "present.0.key": cache}, scratch, {}))
    assert message.endswith("copy.plan: present.0.key is not a cache updated in place; compile the bundle again")


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


def test_an_output_that_does_not_fit_its_memory(loaded: Loaded) -> None:
    """More rows of logits than the buffer has would be written over what lies behind it."""
    shapes = {"tokens": (1, 2), "columns": (16,)}
    for given in ((1, 1, 5), (1, 2, 6), (2, 5)):
        message = refusal(
            lambda given=given: loaded.plan.bind(1, shapes, loaded.addresses, loaded.scratch, {"logits": given})  # type: ignore[misc]
        )
        assert f"onnx.plan: logits has the shape [1, 2, 5], expected {list(given)}: " in message
    loaded.plan.bind(1, shapes, loaded.addresses, loaded.scratch, {"logits": (1, 2, 5)})


def test_a_pass_that_cannot_be_captured_is_refused_when_it_is_bound(device: FakeDevice, folder: Path) -> None:
    """Not when the first request has come so far."""

    def lazy(engine: Any, file: Path) -> Any:
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(ExecutionContextAllocationStrategy.USER_MANAGED)
        config.dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY
        return config

    loaded = Loaded(device, folder / "onnx.plan", lazy, rtx=True)
    assert "onnx.plan: its work cannot be captured as a CUDA graph: " in refusal(loaded.bind)


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
