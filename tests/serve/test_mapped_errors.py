"""From an error to what a client is answered: the status, `code` and `param` follow from its type, code and field."""

from __future__ import annotations

import msgspec
import pytest
from specexport.errors import (
    EngineError,
    GrammarError,
    LongPromptError,
    MissingPackageError,
    ParameterError,
    PromptError,
    QueueError,
    SessionClosedError,
    ToolsError,
)
from specexport.runtime.sampling.parameters import SamplingParameters
from specexport.serve.wire.errors import ErrorAnswer, invalid, of_engine

MAPPED: list[tuple[BaseException, tuple[int, str, str | None]]] = [
    (ParameterError("x", "top_p"), (400, "invalid_value", "top_p")),
    (ParameterError("x", "num_draft_tokens"), (400, "invalid_value", "specexport.num_draft_tokens")),
    (ParameterError("x", "max_new_tokens"), (400, "invalid_value", "max_tokens")),
    (ParameterError("x", "min_new_tokens"), (400, "invalid_value", "min_tokens")),
    (ParameterError("x", "seed", code="schema_too_complex"), (400, "schema_too_complex", "seed")),
    (PromptError("x", "prompt"), (400, "invalid_value", "prompt")),
    (ToolsError("x"), (400, "unsupported_parameter", "tools")),
    (LongPromptError("x", "messages", tokens=9, capacity=8), (400, "context_length_exceeded", "messages")),
    (GrammarError("x"), (400, "invalid_schema", None)),
    (GrammarError("x", code="schema_too_complex"), (400, "schema_too_complex", None)),
    (GrammarError("x", code="grammar_busy"), (503, "grammar_busy", None)),
    (MissingPackageError("jinja2", "chat"), (400, "unsupported_parameter", None)),
    (QueueError("queue_full", "x", 3), (429, "queue_full", None)),
    (QueueError("queue_timeout", "x", 3), (503, "queue_timeout", None)),
    (SessionClosedError("x"), (503, "shutting_down", None)),
    (EngineError("x", code="out_of_device_memory"), (500, "engine_error", None)),
    (ZeroDivisionError("x"), (500, "engine_error", None)),
    (invalid("model", "x", "model_not_found"), (404, "model_not_found", "model")),
]


@pytest.mark.parametrize(("error", "answer"), MAPPED, ids=[f"{type(one).__name__}-{want[1]}" for one, want in MAPPED])
def test_an_error_is_answered_by_its_facts(error: BaseException, answer: tuple[int, str, str | None]) -> None:
    found = of_engine(error)
    assert (found.status, found.code, found.param) == answer
    sent = msgspec.json.decode(found.body, type=ErrorAnswer).error
    assert (sent.code, sent.param) == answer[1:]
    assert ("Retry-After" in found.headers) == (answer[0] in (429, 503))


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [("stop", [""], "stop"), ("min_new_tokens", -1, "min_tokens"), ("drafter", 3, "specexport.drafter")],
)
def test_what_the_runtime_refuses_is_named_as_in_requests(field: str, value: object, param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParameters(**{field: value})  # type: ignore[arg-type]
    answer = of_engine(caught.value)
    assert answer.param == param
    message = msgspec.json.decode(answer.body, type=ErrorAnswer).error.message
    assert message.startswith((f"{param} is ", "a stop string "))
