from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from specexport.bundle import FORMATS, PRECISIONS
from specexport.engines.catalogue import ENGINES
from specexport.engines.tensorrt.compile import CompileOptions
from specexport.errors import ParameterError
from specexport.exporter.options import BuildOptions, NamedDraft
from specexport.exporter.precision import (
    PrecisionPlan,
    choose_precision_plan,
    formats_of,
    parse_version,
    refusal,
)
from support.refusals import refused

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
