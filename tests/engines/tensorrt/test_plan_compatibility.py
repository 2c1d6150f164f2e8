"""Plans made for something else: what was found, what is needed, and the command that compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specexport.bundle import Bundle, Plan
from specexport.engines.tensorrt.api import LEAN, Library, library
from specexport.engines.tensorrt.plan_compatibility import check_fit
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

    def __init__(
        self, folder: Path, engine: str, version: str, capability: tuple[int, int] = (8, 9), name: str | None = None
    ) -> None:
        self.bundle: Bundle = write_bundle(folder)
        self.file = folder / "target.plan"
        self.engine = engine
        self.device = FakeDevice(name="Fake RTX", compute_capability=capability)
        names = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
        self.library = Library(name or names[engine], FakeTensorRT(self.device, version, rtx=engine == "tensorrt-rtx"))

    def check(
        self,
        version: str,
        capabilities: tuple[str, ...] = (),
        version_compatible: bool = False,
        hardware_compatible: bool = False,
    ) -> None:
        self.file.write_bytes(fake_plan(Path("model.onnx"), version=version, compute_capabilities=capabilities))
        entry = Plan(
            self.engine,
            "graphs/target.onnx",
            self.file.name,
            version,
            capabilities,
            version_compatible,
            hardware_compatible,
        )
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
    return lambda engine="tensorrt", version="10.16.1.11", capability=(8, 9), name=None: Host(
        tmp_path, engine, version, capability, name
    )


# The version.


def test_the_version_that_made_it_fits(host: Callable[..., Host]) -> None:
    for compatible in (False, True):
        host().check("10.16.1.11", version_compatible=compatible)
    host(version="10.3.0").check("10.3.0")


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


def test_the_lean_runtime_is_called_so(host: Callable[..., Host]) -> None:
    found = host(version="10.15.0.1", name=LEAN)
    assert "this host has TensorRT's lean runtime 10.15.0.1; " in found.refusal("10.16.1.11", version_compatible=True)


# The GPU.


@pytest.mark.parametrize(
    ("made_for", "here", "compatible"),
    [
        ((), (7, 5), False),  # the library decides
        (("8.9",), (8, 9), False),
        (("8.6", "8.9", "12.0"), (8, 9), False),
        (("8.6",), (8, 6), True),
        (("8.6",), (8, 9), True),
        (("8.6",), (12, 0), True),
        (("9.0",), (10, 0), True),  # as numbers, not as texts
        (("9.0",), (8, 0), True),  # from Ampere on, whatever GPU made it
    ],
)
def test_gpus_that_fit(
    host: Callable[..., Host], made_for: tuple[str, ...], here: tuple[int, int], compatible: bool
) -> None:
    host(capability=here).check("10.16.1.11", made_for, hardware_compatible=compatible)


@pytest.mark.parametrize(
    ("made_for", "here", "compatible"),
    [
        (("8.6",), (8, 9), False),
        (("8.9",), (8, 6), False),
        (("8.6", "12.0"), (8, 9), False),
        (("8.9",), (7, 5), True),
    ],
)
def test_a_plan_for_another_gpu(
    host: Callable[..., Host], made_for: tuple[str, ...], here: tuple[int, int], compatible: bool
) -> None:
    found = host(capability=here)
    major, minor = here
    assert found.refusal("10.16.1.11", made_for, hardware_compatible=compatible) == (
        f"was made for compute capability {', '.join(made_for)}, Fake RTX has {major}.{minor}; "
        f"compile it here: specexport compile {found.bundle.root} --engine tensorrt"
    )


def test_the_command_for_rtx_names_the_gpu(host: Callable[..., Host]) -> None:
    """TensorRT compiles for the GPU at hand, and takes no such option; TensorRT-RTX compiles for none in particular."""
    found = host("tensorrt-rtx", "1.7.1.116", (12, 0))
    assert found.refusal("1.7.1.116", ("8.6", "8.9")) == (
        "was made for compute capability 8.6, 8.9, Fake RTX has 12.0; "
        f"compile it here: specexport compile {found.bundle.root} --engine tensorrt-rtx --compute-capability 12.0"
    )


def test_the_version_is_looked_at_first(host: Callable[..., Host]) -> None:
    assert host(capability=(8, 6)).refusal("10.3.0.26", ("8.9",)).startswith("was made by version 10.3.0.26")


# What TensorRT-RTX says itself.


def test_rtx_takes_its_own_plans(host: Callable[..., Host]) -> None:
    host("tensorrt-rtx", "1.7.1.116").check("1.7.1.116", ("8.9",))
    host("tensorrt-rtx", "1.7.1.116").check("1.7.1.116")


def test_a_plan_that_rtx_calls_slower_than_it_could_be(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fake_tensorrt.Runtime, "get_engine_validity", lambda self, buffer: (EngineValidity.SUBOPTIMAL, 0)
    )
    host("tensorrt-rtx", "1.7.1.116").check("1.7.1.116")


@pytest.mark.parametrize(
    ("diagnostics", "causes"),
    [
        (EngineInvalidityDiagnostics.MALFORMED_ENGINE, "malformed engine"),
        (
            EngineInvalidityDiagnostics.VERSION_MISMATCH | EngineInvalidityDiagnostics.UNSUPPORTED_CC,
            "version mismatch, unsupported cc",
        ),
        (0, "no cause is given"),
    ],
)
def test_a_plan_that_rtx_refuses(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, diagnostics: int, causes: str
) -> None:
    monkeypatch.setattr(
        fake_tensorrt.Runtime, "get_engine_validity", lambda self, buffer: (EngineValidity.INVALID, int(diagnostics))
    )
    found = host("tensorrt-rtx", "1.7.1.116")
    assert found.refusal("1.7.1.116").startswith(f"cannot run on Fake RTX with TensorRT-RTX 1.7.1.116 ({causes}); ")


def test_rtx_is_shown_the_plan_itself(host: Callable[..., Host]) -> None:
    """Whatever the manifest says: the fake looks into the file."""
    found = host("tensorrt-rtx", "1.7.1.116")
    found.file.write_bytes(fake_plan(Path("model.onnx"), version="1.6.0"))
    entry = Plan("tensorrt-rtx", "graphs/target.onnx", found.file.name, "1.7.1.116", (), False, False)
    with refused(EngineError, "--engine", code="incompatible_plan"):
        check_fit(found.bundle, entry, found.library, found.device)


def test_the_real_rtx_refuses_what_is_no_plan(host: Callable[..., Host]) -> None:
    """Its bindings take the file as it is mapped, and their diagnostics have names."""
    pytest.importorskip("tensorrt_rtx")
    real = library("tensorrt_rtx")
    found = host("tensorrt-rtx", "1.7.1.116")
    found.library = real
    found.file.write_bytes(b"no plan" * 1000)
    entry = Plan("tensorrt-rtx", "graphs/target.onnx", found.file.name, real.trt.__version__, (), False, False)
    with refused(EngineError, "--engine", code="incompatible_plan"):
        check_fit(found.bundle, entry, real, found.device)


@pytest.mark.parametrize(
    ("diagnostics", "remedy"),
    [
        (4, "update the driver"),  # OLD_CUDA_DRIVER
        (8, "update CUDA"),  # OLD_CUDA_RUNTIME
        (16, "close other programs that use the GPU, or build with a smaller --precision"),  # INSUFFICIENT_GPU_MEMORY
        (4 | 2, "update the driver"),
        # the default begins at 8.0
        (2, "compile it here: specexport compile {root} --engine tensorrt-rtx --compute-capability 7.5"),
        (32, "compile it here: specexport compile {root} --engine tensorrt-rtx --compute-capability 7.5"),
    ],
)
def test_a_remedy_that_helps(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, diagnostics: int, remedy: str
) -> None:
    monkeypatch.setattr(
        fake_tensorrt.Runtime, "get_engine_validity", lambda self, buffer: (EngineValidity.INVALID, diagnostics)
    )
    real = pytest.importorskip("tensorrt_rtx")
    found = host("tensorrt-rtx", "1.7.1.116", (7, 5))
    monkeypatch.setattr(found.library.trt, "EngineInvalidityDiagnostics", real.EngineInvalidityDiagnostics)
    with pytest.raises(EngineError) as caught:
        found.check("1.7.1.116")
    assert str(caught.value).endswith(f"); {remedy.format(root=found.bundle.root)}")
