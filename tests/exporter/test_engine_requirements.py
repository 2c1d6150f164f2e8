"""What engines ask of a build, and what a host that cannot compile for them is told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.engines.base import Availability
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import EngineError, MissingPackageError, ParameterError
from specexport.exporter import precision as engine_requirements
from specexport.exporter.precision import BuildTargets, choose_build_targets, choose_precision_plan, parse_version
from support.refusals import refused, says

pytest.importorskip("tensorrt_rtx")


def choose(
    *engines: str, precision: str = "fp32", version: str | None = None, portable: bool = False, **options: Any
) -> BuildTargets:
    wanted = parse_version(version) if version else None
    plan = choose_precision_plan(engines, precision, None)
    return choose_build_targets(engines, plan, CompileOptions(**options), wanted, "out dir/my.bundle", portable)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a TensorRT that can compile on this host."""
    real = engine_requirements.compiler

    def install(version: str) -> None:
        lib = SimpleNamespace(version=parse_version(version))
        monkeypatch.setattr(
            engine_requirements,
            "compiler",
            lambda engine, options: lib if engine == "tensorrt" else real(engine, options),
        )

    return install


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether this host can run specexport-kernels."""

    def install(usable: bool) -> None:
        found = Availability(usable, "specexport-kernels is not installed", "install it")
        monkeypatch.setattr(engine_requirements.kernels, "availability", lambda: found)

    return install


@pytest.mark.parametrize(
    ("engines", "dialects", "compiled"),
    [
        (("onnxruntime",), ("kernels",), ()),
        (("tensorrt-rtx",), ("onnx",), ("tensorrt-rtx",)),
        (("onnxruntime", "tensorrt-rtx"), ("kernels", "onnx"), ("tensorrt-rtx",)),
    ],
)
def test_dialects_and_plans(
    engines: tuple[str, ...], dialects: tuple[str, ...], compiled: tuple[str, ...], kernels: Callable[[bool], None]
) -> None:
    kernels(True)
    assert choose(*engines) == BuildTargets(dialects, compiled, ())


def test_which_graphs_onnxruntime_gets(kernels: Callable[[bool], None]) -> None:
    kernels(True)
    for precision in ("fp32", "int8", "int4"):
        assert choose("onnxruntime", precision=precision).dialects == ("kernels",)
        assert choose("onnxruntime", precision=precision, portable=True).dialects == ("kernels", "ort")
    assert choose("onnxruntime", precision="fp16").dialects == ("ort",)  # the kernels compute in fp32
    assert choose("onnxruntime-cuda", precision="fp16").dialects == ("ort",)
    kernels(False)
    for portable in (False, True):
        found = choose("onnxruntime", portable=portable)
        assert found.dialects == ("ort",)
        (note,) = found.notes
        says(note, "specexport-kernels is not installed", "install it")
    assert choose("onnxruntime", precision="fp16").notes == ()


def test_a_host_without_tensorrt_makes_the_graphs_and_says_what_to_run() -> None:
    found = choose("tensorrt", hardware_compatible=True, timing_cache="my times")
    assert (found.dialects, found.compiled) == (("onnx",), ())
    (note,) = found.notes
    assert note == (
        "tensorrt: no plans are made here: the package tensorrt is not installed; on the device, run: "
        "specexport compile 'out dir/my.bundle' --engine tensorrt --hardware-compatible --timing-cache 'my times' "
        "(TensorRT older than 10.15 needs a bundle built with --tensorrt-version)"
    )


@pytest.mark.parametrize(
    ("version", "dialects"),
    [("10.3", ("rows",)), ("10.14.1", ("rows",)), ("10.15", ("onnx",)), ("11.4.0.106", ("onnx",))],
)
def test_the_version_on_the_device_chooses_the_dialect(version: str, dialects: tuple[str, ...]) -> None:
    found = choose("tensorrt", version=version)
    assert (found.dialects, found.compiled) == (dialects, ())
    assert "needs a bundle" not in found.notes[0]


def test_the_version_of_this_host(here: Callable[[str], None]) -> None:
    here("10.16.1.11")
    assert choose("tensorrt") == BuildTargets(("onnx",), ("tensorrt",), ())
    assert choose("tensorrt", version="10.16") == BuildTargets(("onnx",), ("tensorrt",), ())
    for both in (("tensorrt-rtx", "tensorrt"), ("tensorrt", "tensorrt-rtx")):
        assert choose(*both).compiled == both
    here("10.13.3.9")
    assert choose("tensorrt") == BuildTargets(("rows",), ("tensorrt",), ())


def test_no_plan_is_made_by_another_version(here: Callable[[str], None]) -> None:
    here("10.16.1.11")
    found = choose("tensorrt", version="10.3")
    assert (found.dialects, found.compiled) == (("rows",), ())
    assert found.notes[0].startswith(
        "tensorrt: no plans are made here: this host has TensorRT 10.16.1.11, not 10.3; on the device, run: "
    )
    assert choose("tensorrt", version="10.16.2").compiled == ()
    assert choose("tensorrt", version="10.17").compiled == ()


@pytest.mark.parametrize("version", ["10", "10.x", "", "ten", "10.3.0.26.1", "-10.3"])
def test_versions_that_are_none(version: str) -> None:
    with refused(ParameterError, "--tensorrt-version", "10.3", field="tensorrt_version"):
        parse_version(version)


@pytest.mark.parametrize(
    ("engines", "given", "error"),
    [
        (("onnxruntime",), dict(precision="bf16"), ParameterError),
        (("tensorrt-rtx", "onnxruntime"), dict(precision="bf16"), ParameterError),
        (("onnxruntime-cuda",), dict(precision="fp32"), ParameterError),
        (("tensorrt", "cuda"), {}, EngineError),
        (("tensorrt",), dict(version="10.2"), EngineError),
        (("tensorrt",), dict(compute_capabilities=("8.9",)), EngineError),
        (("tensorrt-rtx",), dict(version_compatible=True), EngineError),
        (("tensorrt-rtx",), dict(compute_capabilities=("8.7",)), EngineError),
    ],
)  # fmt: skip
def test_what_cannot_be_built(engines: tuple[str, ...], given: dict[str, Any], error: type[Exception]) -> None:
    with refused(error, code=("engine_error", "invalid_value", "unknown_engine"), field=(None, "engine", "precision")):
        choose(*engines, **given)


def test_rtx_that_is_missing_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles on any host, so nothing is left for later."""

    def missing(engine: str, options: CompileOptions) -> None:
        raise MissingPackageError("tensorrt_rtx", "tensorrt-rtx")

    monkeypatch.setattr(engine_requirements, "compiler", missing)
    with pytest.raises(MissingPackageError):
        choose("tensorrt-rtx")
    assert choose("tensorrt").compiled == ()
