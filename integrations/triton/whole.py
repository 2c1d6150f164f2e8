"""The model that answers once: it asks the one that streams, in the same server, and joins what comes.

By HTTP Triton answers with one response only where a model is not decoupled, and such a model may not send many.
This one has no session of its own, so no second copy of the weights. What it asks cannot be cancelled: Triton 2.51 has
no way for that, and does not tell it that a client of HTTP has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layout import OUTPUTS, TEXT_OUTPUT
from .tensors import output_texts, refusal, response


class WholeAnswers:
    """of: the name of the model that streams."""

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
