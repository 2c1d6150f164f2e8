"""The names in a model repository, and tensors of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ENTRY, PATHS, CONFIG, BUNDLE = "1/model.py", "1/python_path", "config.pbtxt", "bundle"
TEXT, OPTIONS = "text_input", "options"
TEXT_OUTPUT, REASON, STATISTICS = "text_output", "finish_reason", "statistics"
INPUTS, OUTPUTS = (TEXT, OPTIONS), (TEXT_OUTPUT, REASON, STATISTICS)
OF = "of"  # the parameter of the model for whole answers that names the model which streams


def response(backend: Any, texts: Mapping[str, str]) -> Any:
    """A response with one tensor per text, of one string each."""
    return backend.InferenceResponse(
        [backend.Tensor(name, np.array([text.encode()], dtype=np.object_)) for name, text in texts.items()]
    )


def refusal(backend: Any, message: str, code: Any) -> Any:
    """A response with an error."""
    return backend.InferenceResponse(error=backend.TritonError(message, code))


def input_bytes(backend: Any, request: Any, name: str) -> bytes | None:
    """The string in a request's tensor, None if the request does not have the tensor."""
    tensor = backend.get_input_tensor_by_name(request, name)
    return None if tensor is None else bytes(tensor.as_numpy().item())


def output_texts(answer: Any) -> dict[str, str]:
    """The strings of a response, by the name of their tensor."""
    return {tensor.name(): tensor.as_numpy().item().decode() for tensor in answer.output_tensors()}
