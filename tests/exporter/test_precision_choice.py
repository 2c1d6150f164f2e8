from __future__ import annotations

import pytest
from specexport.bundle import FORMATS, PRECISIONS
from specexport.engines.catalogue import ENGINES
from specexport.errors import ParameterError
from specexport.exporter.precision import PrecisionPlan, choose_precision_plan, formats_of, refusal
from support.refusals import refused

CPU = ("onnxruntime",)
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
        (CPU, "auto", None),
    ],
)
def test_names_that_do_not_go_together(engines: tuple[str, ...], precision: str, draft: str | None) -> None:
    with refused(ParameterError, field=("draft_precision", "precision")):
        choose_precision_plan(engines, precision, draft)


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
