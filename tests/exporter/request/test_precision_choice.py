from __future__ import annotations

import pytest
from specexport.errors import ParameterError
from specexport.exporter.request.precision_choice import Numbers, choose_numbers

CPU = ("onnxruntime",)
RTX = ("tensorrt-rtx",)


@pytest.mark.parametrize(
    ("engines", "precision", "draft", "found"),
    [
        (CPU, "fp32", None, Numbers("fp32", {"target": "float", "draft": "float"}, "onnxruntime")),
        (("onnxruntime", "tensorrt"), "fp16", None, Numbers("fp16", {"target": "float", "draft": "float"}, "tensorrt")),
        (CPU, "int8", None, Numbers("fp32", {"target": "int8", "draft": "int8"}, "onnxruntime")),
        (CPU, "int8", "int4", Numbers("fp32", {"target": "int8", "draft": "int4"}, "onnxruntime")),
        (CPU, "fp32", "int8", Numbers("fp32", {"target": "float", "draft": "int8"}, "onnxruntime")),
        (RTX, "int4", "fp16", Numbers("fp16", {"target": "int4", "draft": "float"}, "tensorrt")),
        (CPU, "auto", None, Numbers("fp32", {"target": "float", "draft": "float"}, "onnxruntime")),
    ],
)
def test_what_names_mean(engines: tuple[str, ...], precision: str, draft: str | None, found: Numbers) -> None:
    assert choose_numbers(engines, precision, draft) == found


@pytest.mark.parametrize(
    ("engines", "precision", "draft", "message"),
    [
        (CPU, "int3", None, "--precision is int3; it must be one of fp32, fp16, bf16, int8, int4, fp8, auto"),
        (CPU, "int8", "auto", "--draft-precision is auto; it must be one of fp32, fp16, bf16, int8, int4, fp8$"),
        (
            CPU,
            "fp32",
            "fp16",
            "--draft-precision is fp16, --precision fp32; unless one is quantized they must be equal",
        ),
        (
            CPU,
            "int8",
            "fp16",
            "the draft's precision is fp16; beside a quantized model on onnxruntime it must be fp32, or quantized too",
        ),
        (
            RTX,
            "fp32",
            "int4",
            "the target's precision is fp32; beside a quantized model on tensorrt-rtx it must be fp16",
        ),
        (
            ("onnxruntime", "tensorrt"),
            "int8",
            None,
            "onnxruntime and tensorrt round in different ways.*; build a bundle for each",
        ),
        (
            RTX,
            "auto",
            None,
            "--precision auto measures on this CPU, for --engine onnxruntime; name a precision for tensorrt-rtx",
        ),
        (("onnxruntime", "tensorrt"), "auto", None, "for --engine onnxruntime; name a precision for tensorrt$"),
        (CPU, "auto", "int8", "--precision auto chooses the draft's precision too; leave --draft-precision int8 out"),
    ],
)
def test_names_that_do_not_go_together(
    engines: tuple[str, ...], precision: str, draft: str | None, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        choose_numbers(engines, precision, draft)
