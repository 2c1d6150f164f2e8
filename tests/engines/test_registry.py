from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from specexport.bundle import Bundle, Precision, State
from specexport.engines import registry
from specexport.engines.base import Availability
from specexport.engines.catalogue import ENGINES
from specexport.engines.onnxruntime import cpu
from specexport.engines.registry import availabilities, engine_module, load_engine
from specexport.engines.tensorrt import enterprise
from specexport.errors import EngineError, ParameterError
from support.refusals import refused


@pytest.fixture(scope="module")
def opened(built: Path) -> Bundle:
    return Bundle.open(built)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without ONNX Runtime."""
    monkeypatch.setattr(cpu, "availability", lambda: Availability(False, "not installed", "install it"))


def built_for(opened: Bundle, *names: str) -> Bundle:
    return Bundle(opened.root, replace(opened.manifest, engines=names))


def test_the_order_of_the_bundle_decides(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that this host lacks are passed over, whatever the order."""
    assert load_engine(built_for(opened, "tensorrt", "tensorrt-rtx", "onnxruntime")).name == "onnxruntime"
    loaded = SimpleNamespace(
        availability=lambda: Availability(True, "a GPU"),
        load=lambda bundle, threads, device: SimpleNamespace(name=f"GPU {device}"),
    )
    module = registry.engine_module
    monkeypatch.setattr(registry, "engine_module", lambda name: loaded if name == "tensorrt" else module(name))
    assert load_engine(built_for(opened, "tensorrt", "onnxruntime")).name == "GPU 0"
    assert load_engine(built_for(opened, "tensorrt", "onnxruntime"), device=3).name == "GPU 3"
    assert load_engine(built_for(opened, "onnxruntime", "tensorrt")).name == "onnxruntime"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (cpu, {"code": "engine_unavailable"}),  # as without specexport-kernels
        (enterprise, {"code": "not_built_for_engine"}),
        (enterprise, {"code": "incompatible_plan"}),
    ],
)
def test_an_engine_that_cannot_run_this_bundle_is_passed_over(
    opened: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, why: dict[str, str]
) -> None:
    """That the host has its package is not enough."""
    other = enterprise if module is cpu else cpu

    def refuse(*_: object) -> None:
        raise EngineError("it lacks something", **why)

    for one in (module, other):
        monkeypatch.setattr(one, "availability", lambda: Availability(True, "found"))
    monkeypatch.setattr(module, "load", refuse)
    monkeypatch.setattr(other, "load", lambda *_: SimpleNamespace(name=other.NAME))
    bundle = built_for(opened, module.NAME, other.NAME)
    assert load_engine(bundle).name == other.NAME
    assert caplog.messages == [f"engine {module.NAME} is passed over for {other.NAME}: it lacks something"]
    with refused(EngineError, "it lacks something", **why):  # what was asked for by name
        load_engine(bundle, module.NAME)
    monkeypatch.setattr(other, "load", refuse)
    caplog.clear()
    with refused(EngineError, f"{module.NAME} (it lacks something), {other.NAME} (it", code="engine_unavailable"):
        load_engine(bundle)
    assert not caplog.messages


def test_an_engine_that_fails_otherwise_is_not_passed_over(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may be short for a moment, and the other engine be far slower."""

    def fail(*_: object) -> None:
        raise EngineError("too little memory", code="out_of_device_memory")

    monkeypatch.setattr(enterprise, "availability", lambda: Availability(True, "a GPU"))
    monkeypatch.setattr(enterprise, "load", fail)
    with refused(EngineError, "memory", code="out_of_device_memory"):
        load_engine(built_for(opened, "tensorrt", "onnxruntime"))


def test_an_unknown_name_lists_the_names(opened: Bundle) -> None:
    with refused(EngineError, code="unknown_engine", field="engine"):
        load_engine(opened, "cuda")


@pytest.mark.parametrize(("name", "device"), [("onnxruntime", 0), ("onnxruntime", 1), ("tensorrt", -1)])
def test_a_device_that_the_engine_cannot_have(opened: Bundle, name: str, device: int) -> None:
    with refused(ParameterError, device, field="device"):
        load_engine(built_for(opened, "onnxruntime", "tensorrt"), name, device=device)


def test_an_engine_the_bundle_was_not_built_for(opened: Bundle) -> None:
    facts: Any = {"code": "not_built_for_engine", "field": "engine"}
    with refused(EngineError, "built", **facts):
        load_engine(built_for(opened, "tensorrt"), "onnxruntime")
    with refused(EngineError, "build it with --engine tensorrt", **facts):
        load_engine(opened, "tensorrt")  # it has no graphs to compile
    manifest = opened.manifest
    target = replace(manifest.target, graphs=manifest.target.graphs | {"rows": "graphs/target.rows.onnx"})
    with refused(EngineError, f"specexport compile {opened.root} --engine tensorrt", **facts):
        load_engine(replace(opened, manifest=replace(manifest, target=target)), "tensorrt")


@pytest.mark.usefixtures("lacking")
def test_an_engine_that_this_host_lacks(opened: Bundle) -> None:
    with refused(EngineError, "installed", code="engine_unavailable"):
        load_engine(opened, "onnxruntime")
    with refused(EngineError, "installed", code="engine_unavailable"):
        load_engine(opened)


def test_every_engine_tells_whether_it_is_usable() -> None:
    assert set(availabilities()) == set(ENGINES)
    for name in ENGINES:
        module = engine_module(name)
        assert callable(module.load)
        found = module.availability()
        assert found.detail
        assert found.usable or found.remedy


def with_states(opened: Bundle, *engines: str) -> Bundle:
    layer = replace(opened.manifest.target.layers[0], states=(State("window", (2, 8)),))
    target = replace(opened.manifest.target, layers=(layer,))
    return Bundle(opened.root, replace(opened.manifest, engines=engines, target=target))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_precision_that_an_engine_runs_no_states_in(precision: Precision, opened: Bundle) -> None:
    hybrid = with_states(opened, "onnxruntime-cuda")
    contract = replace(hybrid.manifest.contract, precision=precision)
    with refused(EngineError, precision, "--precision"):
        load_engine(Bundle(hybrid.root, replace(hybrid.manifest, contract=contract)), "onnxruntime-cuda")


def test_an_onnxruntime_before_the_operators_for_states(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.1")
    with refused(EngineError, "onnxruntime>=1.31", code="engine_unavailable"):
        load_engine(with_states(opened, "onnxruntime"))
