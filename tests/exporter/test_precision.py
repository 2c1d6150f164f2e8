from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from specexport.bundle import FORMATS, PRECISIONS
from specexport.engines.base import Availability
from specexport.engines.catalogue import ENGINES, EngineInfo, formats_of
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import EngineError, MissingPackageError, ParameterError, UnsupportedModelError
from specexport.exporter import precision
from specexport.exporter.dialects import refuse_engines
from specexport.exporter.options import BuildOptions, NamedDraft
from specexport.exporter.precision import (
    BuildTargets,
    PrecisionPlan,
    choose_build_targets,
    choose_precision_plan,
    parse_version,
    refusal,
)
from support.refusals import refused, says

CPU = ("onnxruntime",)
CUDA = ("onnxruntime-cuda",)
RTX = ("tensorrt-rtx",)


@pytest.mark.parametrize(
    ("engines", "precision", "draft", "found"),
    [
        (CPU, "fp32", None, PrecisionPlan("fp32", {"target": "float", "draft": "float"}, "onnxruntime")),
        (
            ("onnxruntime", "tensorrt"),
            "fp16",
            None,
            PrecisionPlan("fp16", {"target": "float", "draft": "float"}, "tensorrt"),
        ),
        (CPU, "int8", None, PrecisionPlan("fp32", {"target": "int8", "draft": "int8"}, "onnxruntime")),
        (CPU, "int8", "int4", PrecisionPlan("fp32", {"target": "int8", "draft": "int4"}, "onnxruntime")),
        (CPU, "fp32", "int8", PrecisionPlan("fp32", {"target": "float", "draft": "int8"}, "onnxruntime")),
        (CUDA, "int8", "int4", PrecisionPlan("fp16", {"target": "int8", "draft": "int4"}, "onnxruntime-cuda")),
        (CUDA, "fp16", "int4", PrecisionPlan("fp16", {"target": "float", "draft": "int4"}, "onnxruntime-cuda")),
        (RTX, "int4", "fp16", PrecisionPlan("fp16", {"target": "int4", "draft": "float"}, "tensorrt")),
    ],
)
def test_what_names_mean(engines: tuple[str, ...], precision: str, draft: str | None, found: PrecisionPlan) -> None:
    assert choose_precision_plan(engines, precision, draft) == found


@pytest.mark.parametrize(
    ("engines", "precision", "draft"),
    [
        (CPU, "int3", None),
        (CPU, "fp32", "fp16"),
        (CPU, "int8", "fp16"),
        (RTX, "fp32", "int4"),
        (("onnxruntime", "tensorrt"), "int8", None),
        (("onnxruntime", "onnxruntime-cuda"), "int4", None),
        (("onnxruntime-cuda", "tensorrt"), "fp16", "int4"),
        (CUDA, "bf16", "int4"),
        (CPU, "auto", None),
    ],
)
def test_names_that_do_not_go_together(engines: tuple[str, ...], precision: str, draft: str | None) -> None:
    with refused(ParameterError, field=("draft_precision", "precision")):
        choose_precision_plan(engines, precision, draft)


@pytest.mark.parametrize(
    ("engines", "asked", "default"),
    [
        (RTX, {}, "int4"),
        (("tensorrt", "tensorrt-rtx"), dict(version="10.15"), "int4"),
        (("tensorrt",), {}, "int4"),  # as graphs for a device of which nothing is known
        (("tensorrt",), dict(version="10.3"), None),
        (("tensorrt",), dict(installed="10.3"), None),
        (("tensorrt",), dict(installed="10.3", version="10.16"), "int4"),
        (RTX, dict(capabilities=("8.9", "7.5")), None),
        (RTX, dict(precision="fp32"), None),
        (RTX, dict(precision="int8"), None),
        (("onnxruntime", "tensorrt-rtx"), {}, None),
        (("onnxruntime-cuda",), {}, "int4"),
        (("onnxruntime-cuda",), dict(precision="bf16"), None),
        (("onnxruntime-cuda", "tensorrt-rtx"), {}, None),
        (CPU, {}, None),
        (CPU, dict(precision="fp32"), None),
    ],
)
def test_a_draft_for_gpus_is_in_int4_where_it_can_be(
    engines: tuple[str, ...], asked: dict[str, Any], default: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = parse_version(asked["installed"]) if "installed" in asked else None
    monkeypatch.setattr("specexport.exporter.precision._installed", lambda: installed)
    given = BuildOptions(
        precision=asked.get("precision", "fp16"),
        engines=engines,
        compiling=CompileOptions(asked.get("capabilities", ())),
        tensorrt_version=asked.get("version"),
    )
    draft = NamedDraft("draft", "a")
    assert given.for_drafts((draft,)).draft_precision == default
    assert given.for_drafts(()) is given
    named = replace(given, draft_precision=given.precision)
    assert named.for_drafts((draft,)) is named


def test_the_catalogue_names_precisions_that_there_are() -> None:
    assert all(set(info.formats) <= {*PRECISIONS, *FORMATS} for info in ENGINES.values())
    assert all(set(info.least) <= set(info.formats) for info in ENGINES.values())


def test_what_an_engine_lacks_is_refused_with_what_it_has_and_who_has_it() -> None:
    assert refusal("onnxruntime", "fp8") == (
        "--precision is fp8, which engine onnxruntime cannot run; it runs fp32, fp16, int8, int4; "
        "fp8 runs on tensorrt, tensorrt-rtx"
    )
    assert refusal("onnxruntime", "int8", option="--draft-precision") == ""
    assert refusal("onnxruntime", "fp4", option="--draft-precision") == (
        "--draft-precision is fp4, which engine onnxruntime cannot run; it runs fp32, fp16, int8, int4"
    )


@pytest.mark.parametrize(("capability", "runs"), [((8, 6), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)])
@pytest.mark.parametrize("engine", ["tensorrt", "tensorrt-rtx"])
def test_fp8_needs_a_gpu_that_has_it(engine: str, capability: tuple[int, int], runs: bool) -> None:
    assert ("fp8" in formats_of(engine, capability)) == runs
    assert "int8" in formats_of(engine, capability)
    said = refusal(engine, "fp8", capability)
    assert (
        said == ""
        if runs
        else "on compute capability 8.6; that takes 8.9 or later; it runs fp32, fp16, bf16, int8, int4" in said
    )
    assert refusal(engine, "fp8") == ""


def test_tensorrt_rtx_has_no_fp32_on_turing() -> None:
    assert formats_of("tensorrt-rtx", (7, 5)) == ("fp16",)
    assert "fp32" in formats_of("tensorrt", (7, 5))
    with refused(ParameterError, "--precision is fp32", "7.5; that takes 8.0 or later", field="precision"):
        choose("tensorrt-rtx", compute_capabilities=("7.5",))


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
    real = precision.compiler

    def install(version: str) -> None:
        lib = SimpleNamespace(version=parse_version(version))
        monkeypatch.setattr(
            precision,
            "compiler",
            lambda engine, options: lib if engine == "tensorrt" else real(engine, options),
        )

    return install


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether this host can run specexport-kernels."""

    def install(usable: bool) -> None:
        found = Availability(usable, "specexport-kernels is not installed", "install it")
        monkeypatch.setattr(precision.kernels, "availability", lambda: found)

    return install


@pytest.mark.parametrize(
    ("options", "caches"),
    [
        (dict(precision="int8"), "fp16"),
        (dict(precision="int4", cache_precision="fp32"), "fp32"),
        (dict(precision="int8", portable=True), "fp32"),
        (dict(precision="int8", engines=("onnxruntime-cuda",)), "fp16"),
        (dict(precision="fp32", draft_precision="int8"), "fp32"),
        (dict(precision="fp16"), "fp16"),
    ],
)
def test_caches_beside_quantized_weights_are_in_fp16_where_they_can_be(
    options: dict[str, Any], caches: str, kernels: Callable[[bool], None]
) -> None:
    kernels(True)
    assert BuildOptions(**options).caches == caches
    kernels(False)
    on_gpu = "engines" in options or options["precision"] == "fp16"
    if "cache_precision" not in options:
        assert BuildOptions(**options).caches == ("fp16" if on_gpu else "fp32")


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
    for name in ("fp32", "int8", "int4"):
        assert choose("onnxruntime", precision=name).dialects == ("kernels",)
        assert choose("onnxruntime", precision=name, portable=True).dialects == ("kernels", "ort")
    assert choose("onnxruntime", precision="fp16").dialects == ("ort",)  # the kernels compute in fp32
    assert choose("onnxruntime-cuda", precision="fp16").dialects == ("ort",)
    kernels(False)
    for portable in (False, True):
        found = choose("onnxruntime", portable=portable)
        assert found.dialects == ("ort",)
        (note,) = found.notes
        says(note, "specexport-kernels is not installed", "install it")
    assert choose("onnxruntime", precision="fp16").notes == ()


def test_an_engine_that_is_only_an_entry_of_the_catalogue(
    monkeypatch: pytest.MonkeyPatch, kernels: Callable[[bool], None]
) -> None:
    """On the CPU, in fp32, over the graphs of ONNX Runtime's own operators."""
    monkeypatch.setitem(ENGINES, "new", EngineInfo("new", "onnxruntime", ("fp32",), on_gpu=False))
    kernels(True)
    assert choose("new").dialects == ("ort",)
    assert choose("onnxruntime", "new").dialects == ("kernels", "ort")
    alone, both = BuildOptions(engines=("new",)), BuildOptions(engines=("onnxruntime", "new"))
    assert (alone.chunk, both.chunk) == (256, 64)
    assert both.longest_chunk(512) == 512  # nothing is padded
    with refused(ParameterError, field="tree_rows"):
        replace(both, tree_rows=4)
    with refused(ParameterError, field="cache_precision"):
        replace(both, cache_precision="fp16")
    with refused(UnsupportedModelError, "--engine onnxruntime"):
        refuse_engines("Lfm2ForCausalLM", ("new",), ("ort",), "fp32")


@pytest.mark.parametrize(
    ("engines", "chunk", "longest"),
    [(CPU, 256, 512), (CUDA, 512, 64), (RTX, 64, 64), (("onnxruntime", "onnxruntime-cuda"), 64, 64)],
)
def test_how_many_tokens_a_prefill_pass_has(engines: tuple[str, ...], chunk: int, longest: int) -> None:
    options = BuildOptions(engines=engines)
    assert (options.chunk, options.longest_chunk(512)) == (chunk, longest)


def test_a_host_without_tensorrt_makes_the_graphs_and_says_what_to_run() -> None:
    found = choose("tensorrt", version_compatible=True)
    assert (found.dialects, found.compiled) == (("onnx",), ())
    (note,) = found.notes
    assert note == (
        "tensorrt: no plans are made here: the package tensorrt is not installed; on the device, run: "
        "specexport compile 'out dir/my.bundle' --engine tensorrt --version-compatible "
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

    monkeypatch.setattr(precision, "compiler", missing)
    with pytest.raises(MissingPackageError):
        choose("tensorrt-rtx")
    assert choose("tensorrt").compiled == ()
