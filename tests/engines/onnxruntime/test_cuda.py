"""Sessions on a GPU, with a stand-in for onnxruntime-gpu: what is asked of it, and what is said when it refuses."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
from specexport.engines.onnxruntime import cuda
from specexport.engines.onnxruntime.cuda import _session, availability, load
from specexport.errors import EngineError
from support.doubles import CONTRACT, write_bundle
from support.fake_device import FakeDevice
from support.refusals import refused


class FakeOrt(ModuleType):
    """onnxruntime-gpu as it may be found, or be missing parts."""

    def __init__(self, tmp_path: Path, version: str = "1.31.1", cuda: bool = True, refusal: str | None = None) -> None:
        super().__init__("onnxruntime")
        self.__spec__ = ModuleSpec("onnxruntime", None)
        (tmp_path / "capi").mkdir()
        self.__file__ = str(tmp_path / "__init__.py")
        self.__version__ = version
        self.severities: list[int] = []
        self.sessions: list[tuple[Any, dict[str, Any]]] = []
        self.gpus = 1
        self.runs_on, self.fails = ["CUDAExecutionProvider", "CPUExecutionProvider"], ""
        self._cuda, self._refusal = cuda, refusal
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self.place)
        self.SessionOptions = ort.SessionOptions
        self.set_default_logger_severity = self.severities.append

    def get_available_providers(self) -> list[str]:
        return [*(["CUDAExecutionProvider"] if self._cuda else []), "CPUExecutionProvider"]

    def preload_dlls(self) -> None:
        print("Failed to load libcublasLt.so.13")  # noqa: T201

    def place(self, array: Any, device: str, number: int) -> None:
        assert device == "cuda"
        assert self.severities[-1] == 4
        if number >= self.gpus:
            raise RuntimeError("cuda_call.cc:154 CUDA failure 101: invalid device ordinal ; GPU=0 ; file=a.cc ; \n\n")
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def InferenceSession(self, path: Path, options: Any, **given: Any) -> Any:  # noqa: N802
        self.sessions.append((options, given))
        if self.fails:
            raise RuntimeError(self.fails)
        return SimpleNamespace(get_providers=lambda: self.runs_on)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeOrt]:
    def install(**found: Any) -> FakeOrt:
        fake = FakeOrt(tmp_path, **found)
        monkeypatch.setitem(sys.modules, "onnxruntime", fake)
        monkeypatch.setattr(cuda, "find_gpu", lambda: None)
        return fake

    return install


def test_a_gpu_that_the_driver_does_not_show_is_not_usable(
    install: Callable[..., FakeOrt], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()

    def no_gpu() -> None:
        raise EngineError("the package cuda-bindings is not installed; install it with: pip")

    monkeypatch.setattr(cuda, "find_gpu", no_gpu)
    found = availability()
    assert (found.usable, found.remedy) == (False, "install it with: pip")


NOT_AVAILABLE = "GetProviderInfo_CUDA() CUDA Provider not available, can't get interface for it\n"


def test_it_is_available_where_a_number_can_be_put_on_the_gpu(
    install: Callable[..., FakeOrt], capsys: pytest.CaptureFixture[str]
) -> None:
    fake = install()
    found = availability()
    assert found.usable
    assert found.detail == "onnxruntime 1.31.1, CUDA"
    assert fake.severities == [4, 2]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("version", "usable"),
    [("1.30.9", False), ("1.9.0", False), ("1.31.0", True), ("1.32.0.dev1", True), ("2.0.0", True)],
)
def test_versions_that_replay_wrongly(version: str, usable: bool, install: Callable[..., FakeOrt]) -> None:
    install(version=version)
    found = availability()
    assert found.usable is usable
    if not usable:
        assert found.detail == f"onnxruntime {version} replays CUDA graphs wrongly, 1.31 or newer is needed"


@pytest.mark.parametrize(
    ("driver", "remedy"), [(True, "pip uninstall onnxruntime onnxruntime-gpu"), (False, "install the driver")]
)
def test_the_package_for_the_cpu_is_replaced_only_where_there_is_a_driver(
    driver: bool, remedy: str, install: Callable[..., FakeOrt], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(cuda=False)

    def dlopen(path: str) -> None:
        assert path == "libcuda.so.1"
        if not driver:
            raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", dlopen)
    found = availability()
    assert not found.usable
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("library", "detail", "remedy"),
    [
        (
            "libcublasLt.so.13: cannot open",
            "the CUDA provider cannot be loaded: libcublasLt.so.13",
            "onnxruntime-gpu[cuda,cudnn]",
        ),
        ("libcuda.so.1: cannot open", "there is no NVIDIA driver: libcuda.so.1", "install the driver"),
    ],
)
def test_missing_libraries(
    library: str,
    detail: str,
    remedy: str,
    install: Callable[..., FakeOrt],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(refusal=NOT_AVAILABLE)
    provider = tmp_path / "capi" / "libonnxruntime_providers_cuda.so"
    provider.write_bytes(b"")

    def dlopen(path: str) -> None:
        assert path == str(provider)
        raise OSError(f"{library} shared object file")

    monkeypatch.setattr(ctypes, "CDLL", dlopen)
    found = availability()
    assert not found.usable
    assert found.detail.startswith(detail)
    assert remedy in found.remedy


@pytest.mark.parametrize(("capability", "flash"), [((7, 5), {}), ((9, 0), {"sdpa_kernel": "1"})])
def test_a_session_works_on_the_given_stream_and_has_no_way_out(
    capability: tuple[int, int], flash: dict[str, str], install: Callable[..., FakeOrt]
) -> None:
    fake, device = install(), FakeDevice(compute_capability=capability)
    _session(fake, Path("a.onnx"), 0, device)
    ((options, given),) = fake.sessions
    settings = {"enable_cuda_graph": "1", "device_id": "0", "user_compute_stream": str(device.stream), **flash}
    assert given == dict(providers=[("CUDAExecutionProvider", settings), "CPUExecutionProvider"], enable_fallback=0)
    assert options.use_per_session_threads
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert fake.severities == [4, 2]


@pytest.mark.parametrize("draft", [True, False])
def test_kernels_of_several_tokens_are_for_targets_that_verify_drafts(
    draft: bool, install: Callable[..., FakeOrt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install()
    bundle = write_bundle(tmp_path / "a.bundle", replace(CONTRACT, precision="fp16"), has_draft=draft)
    monkeypatch.setattr(cuda, "assemble", lambda *_, on_device: None)
    monkeypatch.setattr(cuda, "OrtDeviceGraph", lambda *_: SimpleNamespace(check=lambda *_: None, close=lambda: None))
    cuda._load(fake, bundle, 0, FakeDevice())
    for (options, _), verifies in zip(fake.sessions, [True, False] if draft else [False], strict=True):
        with nullcontext() if verifies else pytest.raises(RuntimeError, match="fpa_intb_gemm"):  # it is not there
            assert options.get_session_config_entry("ep.cuda.fpa_intb_gemm") == "1"


def test_a_session_that_runs_on_the_cpu_is_refused(install: Callable[..., FakeOrt]) -> None:
    fake = install()
    fake.runs_on = ["CPUExecutionProvider"]
    with refused(EngineError, "a.onnx"):
        _session(fake, Path("a.onnx"), 0, FakeDevice())


def test_a_bundle_in_fp32_and_a_gpu_that_is_not_there_are_refused(
    install: Callable[..., FakeOrt], tmp_path: Path
) -> None:
    install()
    with refused(EngineError, "fp32"):
        load(write_bundle(tmp_path / "fp32", CONTRACT))
    with refused(EngineError, "7"):
        load(write_bundle(tmp_path / "fp16", replace(CONTRACT, precision="fp16")), device=7)


def test_on_this_host_it_says_why_not_or_works(capfd: pytest.CaptureFixture[str]) -> None:
    found = availability()
    assert found.usable or found.remedy
    assert capfd.readouterr().out == ""
