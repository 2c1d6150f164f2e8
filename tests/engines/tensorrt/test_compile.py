"""One graph into a plan: options, profiles, what TensorRT-RTX refuses, and interrupts. Nothing needs a GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import onnx
import pytest
from specexport.bundle import Contract
from specexport.engines.cuda.driver import Gpu
from specexport.engines.tensorrt import compile
from specexport.engines.tensorrt.api import Library, library
from specexport.engines.tensorrt.compile import (
    CompileJob,
    CompileOptions,
    check_options,
    compile_graph,
    compiler,
    describe_compiler,
    model_profiles,
)
from specexport.engines.tensorrt.monitor import STEPS_PER_GRAPH
from specexport.errors import EngineError, MissingPackageError
from support.refusals import refused

trt = pytest.importorskip("tensorrt_rtx")
HEAD = '<ir_version: 8, opset_import: ["": 18, "mine": 1]>\n'
GOOD = HEAD + "model (float[1, T] x) => (float[1, T] y) { y = Add (x, x) }"
PROFILES = ({"x": ((1, 1), (1, 4), (1, 8))},)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write(tmp_path, GOOD)


def write(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "graph.onnx")
    return folder / "graph.onnx"


def compiled(graph: Path, lib: Library | None = None, options: CompileOptions | None = None, **given: Any) -> list[str]:
    """The steps that were announced; the plan lies beside the graph."""
    steps: list[str] = []
    job = CompileJob(graph, **dict(profiles=PROFILES, check=lambda network: iter(())) | given)
    plan, chosen = graph.with_suffix(".plan"), options or CompileOptions()
    compile_graph(lib or library("tensorrt_rtx"), job, plan, chosen, steps.append)
    return steps


def refusal(graph: Path, **given: Any) -> str:
    """The error of a compilation, which leaves nothing."""
    with pytest.raises(EngineError) as caught:
        compiled(graph, **given)
    assert "\n" not in str(caught.value)
    assert [path.name for path in graph.parent.iterdir()] == [graph.name]
    return str(caught.value)


def test_a_plan_and_its_progress(graph: Path) -> None:
    steps = compiled(graph)
    assert len(steps) == STEPS_PER_GRAPH
    assert steps[0] == "building engine"
    assert graph.with_suffix(".plan").stat().st_size > 1000
    assert sorted(path.name for path in graph.parent.iterdir()) == ["graph.onnx", "graph.plan"]


def test_a_network_that_a_check_refuses(graph: Path) -> None:
    def check(network: Any) -> Iterator[str]:
        yield f"{network.get_input(0).name} is wrong"
        yield "and more"

    assert refusal(graph, check=check) == "graph.onnx must not be compiled: x is wrong; build the bundle again"


class Endless:
    """A real builder whose builds end only when they are told to."""

    def __init__(self, real: Any) -> None:
        self.real, self.ended = real, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def build_serialized_network(self, network: Any, config: Any) -> None:
        assert current_thread() is not main_thread()
        os.kill(os.getpid(), signal.SIGTERM)
        limit = monotonic() + 20
        while config.progress_monitor.step_complete("building", 0) and monotonic() < limit:
            sleep(0.01)
        self.ended = monotonic() < limit


def test_an_interrupt_ends_the_build(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build runs in a thread of its own: the main one hears of the signal and tells it to stop."""
    made: list[Endless] = []
    real = compile._builder

    def builder(lib: Library) -> Endless:
        made.append(Endless(real(lib)))
        return made[0]

    def leave(*arguments: Any) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(compile, "_builder", builder)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            compiled(graph)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert made[0].ended
    assert [path.name for path in graph.parent.iterdir()] == ["graph.onnx"]


def test_a_disk_that_fills_up_leaves_no_half_plan(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        compiled(graph)
    assert [path.name for path in graph.parent.iterdir()] == ["graph.onnx"]


def test_profiles_of_a_model() -> None:
    contract = Contract(capacity=3000, max_draft_tokens=3, prompt_chunk=64, precision="fp16")
    profiles = model_profiles(contract, "target")
    assert [profile["tokens"] for profile in profiles] == [
        ((1, 1), (1, 1), (1, 2)),  # a static width of 1 would store the weights twice
        ((1, 2), (1, 2), (1, 2)),
        ((1, 3), (1, 3), (1, 3)),
        ((1, 4), (1, 4), (1, 4)),
        ((1, 64), (1, 64), (1, 64)),
    ]
    assert {profile["columns"] for profile in profiles} == {((512,), (2048,), (3000,))}
    # A draft's width 1 is static, as is its span where the cache is not long.
    single, *others = model_profiles(contract, "draft", reads=8)
    assert set(single.values()) == {((1, 1),) * 3, ((3000,),) * 3, ((1, 1, 8),) * 3}
    assert [other["tokens"] for other in others] == [profile["tokens"] for profile in profiles[1:]]
    (long, *_) = model_profiles(replace(contract, capacity=5000), "draft")
    assert long == {"tokens": ((1, 1),) * 3, "columns": ((512,), (2048,), (5000,))}
    # The only span of a short cache is not static: keys and values would be expanded.
    (short, *_) = model_profiles(Contract(capacity=64, max_draft_tokens=4, prompt_chunk=5, precision="fp32"), "target")
    assert short["columns"] == ((32,), (64,), (64,))


def test_options_as_the_command_line_has_them() -> None:
    assert CompileOptions().arguments == ()
    given = CompileOptions(("8.6", "12.0"), True)
    assert [" ".join(argument) for argument in given.arguments] == [
        "--compute-capability 8.6",
        "--compute-capability 12.0",
        "--version-compatible",
    ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tensorrt", dict(compute_capabilities=("8.9",))),
        ("tensorrt_rtx", dict(version_compatible=True)),
    ],
)
def test_options_that_a_library_lacks(name: str, options: dict[str, Any]) -> None:
    with refused(EngineError):
        check_options(name, CompileOptions(**options))


def test_the_compiler_for_tensorrt_needs_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(MissingPackageError, "specexport[tensorrt]"):
        compiler("tensorrt", CompileOptions())
    other = SimpleNamespace(name="tensorrt", trt=SimpleNamespace(), version=(10, 16), title="TensorRT 10.16")
    monkeypatch.setattr(compile, "library", lambda name: other)

    def none() -> Gpu:
        raise EngineError("no GPU")

    monkeypatch.setattr(compile, "find_gpu", none)
    with refused(EngineError):
        compiler("tensorrt", CompileOptions())
    monkeypatch.setattr(compile, "find_gpu", lambda: Gpu("Orin", (8, 7), "12.6", 8))
    assert compiler("tensorrt", CompileOptions(version_compatible=True)) is other
    assert describe_compiler("tensorrt") == "TensorRT 10.16, for Orin, graphs of the dialect onnx"
    with refused(EngineError, "--compute-capability"):
        compiler("tensorrt", CompileOptions(("8.7",)))
    other.version = (10, 2)
    with refused(EngineError, "10.2"):
        compiler("tensorrt", CompileOptions())


def configured(options: CompileOptions) -> Mock:
    """What is asked of a builder's configuration."""
    config = Mock()
    compile._config(SimpleNamespace(trt=trt), Mock(create_builder_config=lambda: config), options)  # type: ignore[arg-type]
    return config


def test_a_round_is_one_stream() -> None:
    assert configured(CompileOptions()).max_aux_streams == 0


def test_spans_that_vary_leave_a_single_width_its_layout() -> None:
    contract = Contract(capacity=5000, max_draft_tokens=3, prompt_chunk=64, precision="fp16")
    assert compile.first_shared(model_profiles(contract, "draft")) == 2
    assert compile.first_shared(model_profiles(contract, "target")) == 1


@pytest.mark.parametrize(("least", "targets"), [((1, 2), [1.0, 1.0, 0.0]), ((1, 1), [1.0, 0.0, 0.0])])
def test_profiles_share_a_layout_of_the_weights(
    graph: Path, monkeypatch: pytest.MonkeyPatch, least: tuple[int, int], targets: list[float]
) -> None:
    """But for a first one of a single shape, which is a product of a matrix and a vector."""
    made, make = [], compile._profile
    monkeypatch.setattr(compile, "_profile", lambda *given, **named: made.append(make(*given, **named)) or made[-1])
    compiled(graph, profiles=({"x": (least, (1, 2), (1, 2))}, *PROFILES, *PROFILES))
    assert [profile.extra_memory_target for profile in made] == targets


def test_options_reach_the_build() -> None:
    """TensorRT-RTX takes the first alone, and ignores the other."""
    asked = configured(CompileOptions(("12.0", "8.9"))).set_compute_capability
    assert asked.mock_calls == [call(trt.ComputeCapability.SM120, 0), call(trt.ComputeCapability.SM89, 1)]
    asked = configured(CompileOptions(version_compatible=True)).set_flag
    asked.assert_has_calls([call(trt.BuilderFlag.VERSION_COMPATIBLE), call(trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME)])
