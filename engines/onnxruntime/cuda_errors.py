"""One-line errors for ONNX Runtime's exceptions on CUDA, which are C++ signatures and paths over several lines."""

from __future__ import annotations

import re

from ...errors import EngineError
from ..cuda.driver import size_text

OUT_OF_MEMORY = re.compile("Failed to allocate memory|out of memory|ALLOC_FAILED|Available memory of", re.IGNORECASE)
ASKED = re.compile(r"requested (?:buffer of size|bytes of) (\d+)")
# The reason in e.g. `... CUDA failure 100: no CUDA-capable device is detected ; GPU=0 ; hostname=... ; file=...`.
FAILURE = re.compile(r"(?:CUDA|CUBLAS|CUDNN) failure \d+: ([^;\n]*)")
# What precedes the reason: a status, or the place and the condition of a failed check.
PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |^.* was false\. ")
NOT_ALL_ON_CUDA = "cannot use the graph capture feature"


def explain(error: Exception, what: str) -> EngineError:
    """The error to raise for an exception of ONNX Runtime. what: what failed, the start of the message."""
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        asked = ASKED.search(text)
        size = f", {size_text(int(asked[1]))} more requested" if asked else ""
        return EngineError(
            f"{what}: out of device memory{size}; lower --max-seq-len or --prompt-chunk, or close other programs "
            "that use the "
            "GPU (see nvidia-smi)",
            code="out_of_device_memory",
        )
    if NOT_ALL_ON_CUDA in text:
        return EngineError(
            f"{what}: ONNX Runtime would run parts of it on the CPU, so it cannot be one CUDA graph; "
            "build the bundle again with this version, or use --engine onnxruntime"
        )
    return EngineError(f"{what}: {reason(error)}")


def reason(error: Exception) -> str:
    """CUDA's own message if there is one, else the first line of the exception."""
    text = str(error).strip()
    failure = FAILURE.search(text)
    return failure[1].strip() if failure else PREFIX.sub("", PREFIX.sub("", text.partition("\n")[0]))
