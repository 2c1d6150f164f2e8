"""Texts as tensors of Triton, and back. backend: the module `triton_python_backend_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def response(backend: Any, texts: Mapping[str, str]) -> Any:
    """Of tensors of one string each."""
    return backend.InferenceResponse(
        [backend.Tensor(name, np.array([text.encode()], dtype=np.object_)) for name, text in texts.items()]
    )


def refusal(backend: Any, told: str, code: Any) -> Any:
    return backend.InferenceResponse(error=backend.TritonError(told, code))


def input_bytes(backend: Any, request: Any, name: str) -> bytes | None:
    """None where the request lacks the tensor."""
    tensor = backend.get_input_tensor_by_name(request, name)
    return None if tensor is None else bytes(tensor.as_numpy().item())


def output_texts(answer: Any) -> dict[str, str]:
    return {tensor.name(): tensor.as_numpy().item().decode() for tensor in answer.output_tensors()}
