"""The model for whole answers: it calls the model that streams, in the same server, and joins its responses.

Over HTTP, Triton returns a single response only for models that are not decoupled, and those cannot send several. This
model has no session of its own, so there is no second copy of the weights. Its calls cannot be cancelled: Triton 2.51
has no way to do so, and does not report that an HTTP client has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layout import OUTPUTS, TEXT_OUTPUT
from .tensors import output_texts, refusal, response


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
