"""The models that run in Triton, and the one for whole answers.

Over HTTP, Triton returns a single response only for models that are not decoupled, and those cannot send several. So
`WholeAnswers` calls the model that streams (`streams.py`), in the same server, and joins its responses. It has no
session of its own, so there is no second copy of the weights. Its calls cannot be cancelled: Triton 2.51 has no way to
do so, and does not report that an HTTP client has left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...errors import SpecExportError
from .tensors import OF, OUTPUTS, TEXT_OUTPUT, output_texts, refusal, response


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
