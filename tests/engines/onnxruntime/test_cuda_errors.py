from __future__ import annotations

import pytest
from specexport.engines.onnxruntime.cuda_decoder import explain
from specexport.errors import EngineError
from support.refusals import refused

SOURCE = "/onnxruntime_src/onnxruntime/core"
FULL = (
    f"{SOURCE}/framework/bfc_arena.cc:360 void* Allocate(size_t) "
    "Failed to allocate memory for requested buffer of size 2147483648\n"
)
NO_GPU = (
    f"{SOURCE}/cuda_call.cc:154 CUDA failure 100: no CUDA-capable device is detected ; "
    "GPU=0 ; hostname=secret ; file=a.cc ; line=1 ; \n\n"
)


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "[ONNXRuntimeError] : 6 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=secret",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
        NO_GPU,
        "[ONNXRuntimeError] : 1 : FAIL : This session cannot use the graph capture feature as requested",
        f"[ONNXRuntimeError] : 1 : FAIL : {SOURCE}/a.cc:2 bool f() a != b was false. Provider type is not set.\n",
        "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions\nindex: 2",
    ],
)
def test_exceptions_of_onnx_runtime_become_one_line(text: str) -> None:
    error = explain(RuntimeError(text), "x")
    assert isinstance(error, EngineError)
    with refused(EngineError, code=("engine_error", "out_of_device_memory")):
        raise error
    assert "\n" not in str(error)
    assert "secret" not in str(error)
