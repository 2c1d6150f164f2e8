"""Plans made for something else: what was found, what is needed, and the command that compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Bundle, Plan
from specexport.engines.tensorrt.api import Library, library
from specexport.engines.tensorrt.plan import check_fit
from specexport.errors import EngineError
from support import fake_tensorrt
from support.doubles import write_bundle
from support.fake_device import FakeDevice
from support.fake_tensorrt import FakeTensorRT
from support.fake_tensorrt import plan as fake_plan
from support.fake_tensorrt_types import EngineInvalidityDiagnostics, EngineValidity
from support.refusals import refused


class Host:
    """A bundle with one plan, and a host with a GPU and a library."""

    def __init__(self, folder: Path, engine: str, version: str, capability: tuple[int, int]) -> None:
        self.bundle: Bundle = write_bundle(folder)
        self.file, self.engine = folder / "target.plan", engine
        self.device = FakeDevice(name="Fake RTX", compute_capability=capability)
        trt = FakeTensorRT(self.device, version, rtx=engine == "tensorrt-rtx")
        self.library = Library(engine.replace("-", "_"), trt)

    def check(self, version: str, capabilities: tuple[str, ...] = (), **compatible: bool) -> None:
        self.file.write_bytes(fake_plan(Path("model.onnx"), version=version, compute_capabilities=capabilities))
        options = {"version_compatible": False} | compatible
        entry = Plan(self.engine, "graphs/target.onnx", self.file.name, version, capabilities, **options)
        with self.device.entered():
            check_fit(self.bundle, entry, self.library, self.device)

    def refusal(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(EngineError) as caught:
            self.check(*arguments, **options)
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"{self.file} ")
        assert f"specexport compile {self.bundle.root} --engine {self.engine}" in message
        return message.removeprefix(f"{self.file} ")


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Host]:
    return lambda engine="tensorrt", version="10.16.1.11", capability=(8, 9): Host(
        tmp_path, engine, version, capability
    )


def test_no_runtime_is_made_that_cannot_judge(host: Callable[..., Host]) -> None:
    found = host()
    found.library.trt.Runtime = None  # one would take a context's memory
    found.check("10.16.1.11")


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize(
    ("made", "here"),
    [
        ("10.16.1.11", "10.16.1.10"),
        ("10.16.1.10", "10.16.1.11"),
        ("10.16.1.11", "10.15.1.11"),
        ("9.16.1.11", "10.16.1.11"),
        ("10.16.1", "10.16.1.11"),
    ],
)
def test_a_plan_by_another_version(host: Callable[..., Host], made: str, here: str, compatible: bool) -> None:
    """Even one that is version-compatible: it holds no runtime of its version, whose code would be taken from the
    bundle.
    """
    found = host(version=here)
    assert found.refusal(made, version_compatible=compatible) == (
        f"was made by version {made}, this host has TensorRT {here}; it needs the same version: "
        f"compile it here: specexport compile {found.bundle.root} --engine tensorrt"
    )


@pytest.mark.parametrize(("made_for", "here"), [(("8.6",), (8, 9)), (("8.9",), (8, 6)), (("8.6", "12.0"), (8, 9))])
def test_a_plan_for_another_gpu(host: Callable[..., Host], made_for: tuple[str, ...], here: tuple[int, int]) -> None:
    found = host(capability=here)
    major, minor = here
    assert found.refusal("10.16.1.11", made_for) == (
        f"was made for compute capability {', '.join(made_for)}, Fake RTX has {major}.{minor}; "
        f"compile it here: specexport compile {found.bundle.root} --engine tensorrt"
    )


@pytest.mark.parametrize(
    ("diagnostics", "causes"),
    [
        (EngineInvalidityDiagnostics.MALFORMED_ENGINE, "malformed engine"),
        (
            int(EngineInvalidityDiagnostics.VERSION_MISMATCH) + int(EngineInvalidityDiagnostics.UNSUPPORTED_CC),
            "version mismatch, unsupported cc",
        ),
        (0, "no cause is given"),
    ],
)
def test_a_plan_that_rtx_refuses(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, diagnostics: int, causes: str
) -> None:
    monkeypatch.setattr(
        fake_tensorrt.RtxRuntime, "get_engine_validity", lambda self, buffer: (EngineValidity.INVALID, int(diagnostics))
    )
    found = host("tensorrt-rtx", "1.7.1.116")
    assert found.refusal("1.7.1.116").startswith(f"cannot run on Fake RTX with TensorRT-RTX 1.7.1.116 ({causes}); ")


def test_the_real_rtx_refuses_what_is_no_plan(host: Callable[..., Host]) -> None:
    """Its bindings take the file as it is mapped, and their diagnostics have names."""
    pytest.importorskip("tensorrt_rtx")
    real = library("tensorrt_rtx")
    found = host("tensorrt-rtx", "1.7.1.116")
    found.library = real
    found.file.write_bytes(b"no plan" * 1000)
    entry = Plan("tensorrt-rtx", "graphs/target.onnx", found.file.name, real.trt.__version__, (), False)
    with refused(EngineError, "--engine", code="incompatible_plan"):
        check_fit(found.bundle, entry, real, found.device)
