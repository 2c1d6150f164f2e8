"""Loading a bundle on TensorRT and TensorRT-RTX: what a user is told where it cannot be, and that nothing is left
behind.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from specexport.bundle import Bundle, CacheLayer, Contract, list_files, write_manifest
from specexport.cli import main
from specexport.engines.cuda import device, driver
from specexport.engines.cuda.driver import Driver
from specexport.engines.registry import load_engine
from specexport.engines.rules import RuleSpec
from specexport.engines.tensorrt import enterprise, rtx
from specexport.engines.tensorrt.api import LEAN, Library
from specexport.engines.tensorrt.rtx import RuntimeCaches
from specexport.errors import EngineError, MissingPackageError
from specexport.runtime.session import Session
from support import fake_context, fake_tensorrt
from support.doubles import VOCAB
from support.fake_device import FakeDevice
from support.fake_driver import FakeDriver
from support.fake_engine import with_plans
from support.fake_tensorrt import FakeTensorRT
from support.micro import Micro, micro_bundle

CONTRACT = Contract(capacity=16, max_draft_tokens=1, prompt_chunk=4, precision="fp32")
VERSIONS = {"tensorrt": "10.16.1", "tensorrt-rtx": "1.7.1"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without plans, which speaks bytes."""
    root = tmp_path_factory.mktemp("bundle")
    target, draft = (Micro((CacheLayer(1, 4),), VOCAB, noise=noise) for noise in (0.0, 2.0))
    bundle = micro_bundle(root, CONTRACT, target, draft)
    on_disk(bundle)
    return root


@pytest.fixture
def unplanned(root: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(root, tmp_path / "a.bundle"))


def on_disk(bundle: Bundle) -> Bundle:
    bundle = replace(bundle, manifest=replace(bundle.manifest, files=list_files(bundle.root)))
    write_manifest(bundle.root, bundle.manifest)
    return bundle


class Host:
    """A host with packages and, where there is one, a GPU: what the engines' modules find, replaced by fakes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.device = FakeDevice()
        self.opened: list[Any] = []
        self.libraries: dict[str, Any] = {
            "tensorrt": Library("tensorrt", FakeTensorRT(self.device, VERSIONS["tensorrt"])),
            "tensorrt_rtx": Library("tensorrt_rtx", FakeTensorRT(self.device, VERSIONS["tensorrt-rtx"], rtx=True)),
            LEAN: MissingPackageError(LEAN, "tensorrt-lean"),
        }
        self._patch = patch
        for module in (enterprise, rtx):
            patch.setattr(module, "library", self.library)
            patch.setattr(module, "CudaDevice", self.open)
        self.drive(self.device.driver)

    def library(self, name: str) -> Library:
        if isinstance(self.libraries[name], Exception):
            raise self.libraries[name]
        found: Library = self.libraries[name]
        return found

    def open(self, index: int = 0) -> FakeDevice:
        self.device.index = index
        self.opened.append(self.device)
        return self.device

    def drive(self, fake: FakeDriver) -> None:
        for module in (device, driver):
            self._patch.setattr(module, "load_driver", lambda: Driver(fake))

    def give(self, device: FakeDevice) -> FakeDevice:
        """Another GPU."""
        self.device = device
        for library in self.libraries.values():
            if isinstance(library, Library):
                library.trt._device = device
        self.drive(device.driver)
        return device


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Host(monkeypatch)


def planned(bundle: Bundle, engine: str = "tensorrt", **options: Any) -> Bundle:
    version = options.pop("version", VERSIONS[engine])
    dialect = options.pop("dialect", "onnx")
    return on_disk(with_plans(bundle, dialect, version, engine, **options))


def line(bundle: Bundle, *options: str) -> str:
    """The one line that `specexport generate` ends with."""
    result = CliRunner().invoke(main, ["generate", str(bundle.root), "--prompt", "ab", *options])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


# That it works at all.


@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
def test_generate(host: Host, unplanned: Bundle, engine: str) -> None:
    bundle = planned(unplanned, engine, compute_capabilities=("8.9",))
    given = ["generate", str(bundle.root), "--prompt", "ab", "--max-new-tokens", "6", "--json"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["tokens"]) == 6
    assert "launch" in host.device.log


# What a user is told.


PLACEHOLDER = (
    "tensorrt is installed as a placeholder without its libraries (libnvinfer.so.10 is missing); "
    "install tensorrt-cu12-libs"
)


def no_gpu(host: Host) -> None:
    host.drive(FakeDriver(devices=0))


def old_driver(host: Host) -> None:
    host.drive(FakeDriver(version=11080))


def old_library(host: Host) -> None:
    host.libraries["tensorrt"] = Library("tensorrt", FakeTensorRT(host.device, "8.6.1"))


def no_package(host: Host) -> None:
    host.libraries["tensorrt"] = MissingPackageError("tensorrt", "tensorrt")


def placeholder(host: Host) -> None:
    host.libraries["tensorrt"] = EngineError(PLACEHOLDER)


def no_bindings(host: Host) -> None:
    def missing() -> Driver:
        raise MissingPackageError("cuda-bindings", "cuda")

    host._patch.setattr(driver, "load_driver", missing)


def neither(host: Host) -> None:
    no_bindings(host)
    no_package(host)


UNUSABLE: list[tuple[Callable[[Host], None], str]] = [
    (no_gpu, "the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    (
        old_driver,
        "the NVIDIA driver supports CUDA 11.8, the installed cuda-bindings need 12.0 or newer; "
        "update the driver, or: pip install 'cuda-bindings<12'",
    ),
    (no_package, "the package tensorrt is not installed; install it with: pip install 'specexport[tensorrt]'"),
    (old_library, "TensorRT 8.6.1 is too old; 10.3 or newer is needed"),
    (placeholder, PLACEHOLDER),
    (no_bindings, "the package cuda-bindings is not installed; install it with: pip install 'specexport[cuda]'"),
    (neither, "the package tensorrt is not installed; install it with: pip install 'specexport[tensorrt]'"),
]


@pytest.mark.parametrize(("lacking", "message"), UNUSABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_host_that_cannot_run_it(
    host: Host, unplanned: Bundle, lacking: Callable[[Host], None], message: str
) -> None:
    bundle = planned(unplanned)
    lacking(host)
    assert line(bundle, "--engine", "tensorrt") == f"engine tensorrt: {message}"
    assert line(bundle) == f"this host can run no engine that the bundle was built for: tensorrt ({message})"
    assert host.opened == []


def test_a_gpu_that_the_plans_were_not_made_for(host: Host, unplanned: Bundle) -> None:
    host.give(FakeDevice(name="Fake Orin", compute_capability=(8, 7)))
    bundle = planned(unplanned, compute_capabilities=("9.0",))
    again = f"compile it here: specexport compile {bundle.root} --engine tensorrt"
    file = bundle.path(bundle.manifest.plans[0].file)
    assert line(bundle) == f"{file} was made for compute capability 9.0, Fake Orin has 8.7; {again}"


def test_too_little_memory_for_the_plan(host: Host, unplanned: Bundle) -> None:
    """What was asked, what is free, which option lowers it."""
    host.give(FakeDevice(memory=100))
    host._patch.setattr(
        fake_tensorrt.Runtime, "deserialize_cuda_engine", lambda self, plan: self._error("out of memory")
    )
    bundle = planned(unplanned)
    first = bundle.path(bundle.manifest.plans[0].file).stat().st_size
    message = line(bundle)
    assert re.match(
        rf"out of device memory for [\w-]+\.plan: {first} bytes requested, 100 bytes of 100 bytes free; ", message
    )
    assert "--precision" in message
    assert host.device.driver.live == {}


def test_a_bundle_without_plans(host: Host, unplanned: Bundle) -> None:
    bundle = on_disk(replace(unplanned, manifest=replace(unplanned.manifest, engines=("tensorrt",))))
    remedy = f"make them with: specexport compile {bundle.root} --engine tensorrt"
    assert line(bundle) == f"{bundle.root} has no plans for tensorrt; {remedy}"
    assert host.opened == []


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_bundle_without_the_plan_of_a_model(host: Host, unplanned: Bundle, role: str) -> None:
    bundle = planned(unplanned)
    plans = tuple(plan for plan in bundle.manifest.plans if role not in plan.graph)
    bundle = on_disk(replace(bundle, manifest=replace(bundle.manifest, plans=plans)))
    remedy = f"make it with: specexport compile {bundle.root} --engine tensorrt"
    assert line(bundle) == f"{bundle.root} has no plan of {role} for tensorrt; {remedy}"
    assert host.device.driver.live == {}


# The lean runtime.


def lean(host: Host, version: str = VERSIONS["tensorrt"]) -> None:
    no_package(host)
    host.libraries[LEAN] = Library(LEAN, FakeTensorRT(host.device, version))


def test_the_lean_runtime_runs_plans_that_are_version_compatible(host: Host, unplanned: Bundle) -> None:
    bundle = planned(unplanned, version_compatible=True)
    lean(host)
    assert enterprise.availability().detail.startswith("TensorRT's lean runtime 10.16.1, ")
    engine = load_engine(bundle)
    assert engine.rounds is not None
    assert engine.rounds.run([5, 6], 1, None).num_accepted in (0, 1)
    engine.close()


def test_the_lean_runtime_runs_no_others(host: Host, unplanned: Bundle) -> None:
    bundle = planned(unplanned)
    lean(host)
    assert line(bundle) == (
        "this host has only the lean runtime, which needs version-compatible plans; make them with: "
        f"specexport compile {bundle.root} --engine tensorrt --version-compatible, or install TensorRT"
    )
    first, *others = bundle.manifest.plans
    mixed = on_disk(
        replace(bundle, manifest=replace(bundle.manifest, plans=(replace(first, version_compatible=True), *others)))
    )
    assert line(mixed).startswith("this host has only the lean runtime")
    assert host.opened == []


# Nothing is left behind.


@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
def test_contexts_go_before_the_device(host: Host, unplanned: Bundle, engine: str) -> None:
    bundle = planned(unplanned, engine)
    session = Session(bundle, load_engine(bundle))
    session.generate([5, 6], max_new_tokens=4)
    assert host.device.users
    session.close()
    assert host.device.held == 0
    assert host.device.driver.live == {}


def bad_plan(host: Host, bundle: Bundle) -> None:
    """The last one: those before it have been loaded."""
    bundle.path(bundle.manifest.plans[-1].file).write_bytes(b"rubbish")
    on_disk(bundle)


def driver_failure(function: str) -> Callable[[Host, Bundle], None]:
    def fail(host: Host, bundle: Bundle) -> None:
        host.device.driver.failures[function] = 700

    fail.__name__ = function
    return fail


def no_context(host: Host, bundle: Bundle) -> None:
    host._patch.setattr(fake_tensorrt.ICudaEngine, "create_execution_context", lambda self, argument: None)


def interrupted(host: Host, bundle: Bundle) -> None:
    def interrupt(self: Any, stream: int) -> bool:
        raise KeyboardInterrupt

    host._patch.setattr(fake_context.IExecutionContext, "execute_async_v3", interrupt)


FAILURES = [
    *(bad_plan, no_context, interrupted),
    *map(driver_failure, ("cuMemAlloc", "cuMemHostAlloc", "cuMemcpyAsync", "cuMemsetD8Async", "cuEventRecord")),
    *map(driver_failure, ("cuStreamBeginCapture", "cuGraphInstantiate", "cuCtxGetCurrent")),
]


@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_load_that_fails_gives_everything_back(host: Host, unplanned: Bundle, failure: Any, engine: str) -> None:
    bundle = planned(unplanned, engine)
    failure(host, bundle)
    with pytest.raises(KeyboardInterrupt if failure is interrupted else EngineError):
        load_engine(bundle)
    assert host.opened == [host.device]
    assert host.device.driver.live == {}
    assert host.device.driver.free == host.device.driver.total


# TensorRT-RTX's cache of kernels.


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "specexport" / "tensorrt-rtx"


def test_kernels_are_kept_once_it_is_loaded(host: Host, unplanned: Bundle, kernels: Path) -> None:
    bundle = planned(unplanned, "tensorrt-rtx")
    load_engine(bundle).close()
    names = {f"{bundle.manifest.files[plan.file].sha256}.cache" for plan in bundle.manifest.plans}
    assert {file.name for file in kernels.iterdir()} == names


def test_kernels_that_requests_add_are_kept_too(host: Host, unplanned: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of widths that no round of the device has, such as a lookup's without a draft."""
    saved: list[RuntimeCaches] = []
    monkeypatch.setattr(RuntimeCaches, "save", lambda caches: saved.append(caches))
    engine = load_engine(planned(unplanned, "tensorrt-rtx"))
    assert len(saved) == 1
    engine.close()
    assert len(saved) == 2


# Other parts of an engine.


def test_a_rule_that_is_opened_gives_arrays_of_its_own(host: Host, unplanned: Bundle) -> None:
    """The proof keeps what a rule gave while it runs it again."""
    engine = load_engine(planned(unplanned))
    assert engine.open_rule is not None
    run = engine.open_rule(RuleSpec("select_greedy"))
    logits = np.random.default_rng(0).normal(size=(2, 1, VOCAB)).astype(np.float32)
    first, other = (run({"logits": row}) for row in logits)
    assert [int(found["token"][0]) for found in (first, other)] == logits.argmax(axis=2).ravel().tolist()
    assert first["confidence"][0] != other["confidence"][0]
    engine.close()
