"""The models that run in Triton: the names in a model repository, tensors, and the model for whole answers.

Over HTTP, Triton returns a single response only for models that are not decoupled, and those cannot send several. So
`WholeAnswers` calls the model that streams (`streams.py`), in the same server, and joins its responses. It has no
session of its own, so there is no second copy of the weights. Its calls cannot be cancelled: Triton 2.51 has no way to
do so, and does not report that an HTTP client has left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...errors import SpecExportError

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


class WholeAnswers:
    """Joins the responses of the model `of`, which streams, into one per request."""

    def __init__(self, backend: Any, of: str) -> None:
        self._backend, self._of = backend, of

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def close(self) -> None:
        pass

    def _answer(self, request: Any) -> Any:
        asked = self._backend.InferenceRequest(
            model_name=self._of, inputs=request.inputs(), requested_output_names=list(OUTPUTS)
        )
        pieces: list[str] = []
        rest: dict[str, str] = {}
        for one in asked.exec(decoupled=True):
            if one.has_error():
                return refusal(self._backend, one.error().message(), one.error().code())
            found = output_texts(one)
            pieces.append(found.pop(TEXT_OUTPUT, ""))
            rest.update(found)
        return response(self._backend, {TEXT_OUTPUT: "".join(pieces), **rest})


class Model(Protocol):
    """A model of the Python backend: `execute` returns a response for each request, or None if it sends them itself."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None: ...

    def close(self) -> None: ...


def load_model(backend: Any, args: Mapping[str, str]) -> Model:
    """The model that `args` describes. backend: the module `triton_python_backend_utils`. args: those of `initialize`.

    Raises the backend's `TritonModelException`, with one line.
    """
    given = json.loads(args["model_config"]).get("parameters", {})
    parameters = {name: one["string_value"] for name, one in given.items()}
    if OF in parameters:
        return WholeAnswers(backend, parameters[OF])
    from .streams import Streams, load_session  # not at the top: a model for whole answers needs no runtime

    try:
        return Streams(backend, load_session(args, parameters), args)
    except SpecExportError as error:
        raise backend.TritonModelException(str(error)) from None
