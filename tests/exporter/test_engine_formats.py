from __future__ import annotations

import pytest
from specexport.bundle import FORMATS, PRECISIONS
from specexport.exporter.precision import formats_of, refusal

NAMES = (*PRECISIONS, *FORMATS)


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
