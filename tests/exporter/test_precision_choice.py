from __future__ import annotations

import pytest
from specexport.errors import ParameterError
from specexport.exporter.precision import PrecisionPlan, choose_precision_plan
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
