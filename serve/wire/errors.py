"""Errors in the form of the OpenAI API."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ...errors import (
    GrammarError,
    LongPromptError,
    MissingPackageError,
    ParameterError,
    QueueError,
    SessionClosedError,
    SpecExportError,
)
from .requests import Common, Extension

LOG = logging.getLogger("specexport.serve")
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Of a refusal, by its code: the status, and what the code's name leaves open. docs/http.md is made of it.
CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, ""),
    "invalid_value": (400, ""),
    "unsupported_parameter": (400, "the message says what to give instead"),
    "unknown_parameter": (400, "with `--strict-fields`, or in `specexport`"),
    "context_length_exceeded": (400, "a prompt is never cut"),
    "invalid_schema": (400, "a grammar is wrong, too long, or cannot be enforced"),
    "schema_too_complex": (400, "a grammar would cost too much"),
    "grammar_failed": (400, "during the answer a grammar left no token, or exceeded a limit or `--grammar-timeout`"),
    "invalid_tool_history": (400, ""),
    "invalid_api_key": (401, ""),
    "forbidden_host": (403, ""),
    "forbidden_origin": (403, ""),
    "model_not_found": (404, ""),
    "not_found": (404, ""),
    "method_not_allowed": (405, ""),
    "body_timeout": (408, ""),
    "body_too_large": (413, ""),
    "unsupported_media_type": (415, ""),
    "queue_full": (429, ""),
    "too_many_requests": (429, "of one key or address"),
    "headers_too_large": (431, ""),
    "engine_error": (500, ""),
    "shutting_down": (503, ""),
    "queue_timeout": (503, "no turn within `--queue-timeout`, or none expected"),
    "grammar_busy": (503, "another grammar has been compiling for two seconds"),
    "engine_stuck": (503, "restart the server"),
}
BUSY_RETRY = "2"
EXTENSION = tuple(field.name for field in msgspec.structs.fields(Extension))
CALLED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}  # options with other names in requests
TOO_LONG = "context_length_exceeded"


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """An error for the client. code: one of `CODES`. message: one line. param: the field, as in `messages[0].role`."""

    def __init__(
        self, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = CODES.get(code, (400, ""))[0], code, param, headers or {}

    @property
    def body(self) -> bytes:
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        message = " ".join(str(self).split())
        return msgspec.json.encode(
            ErrorAnswer(ErrorBody(message, TYPES.get(self.status, default), self.param, self.code))
        )


def unsupported(param: str, reason: str) -> ApiError:
    return ApiError("unsupported_parameter", f"{param} is not supported: {reason}", param)


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(code, message, param)


@contextmanager
def as_sent(names: Mapping[str, str]) -> Iterator[None]:
    """Errors become `ApiError`s about the fields as the client named them. names: the client's, by this server's."""
    try:
        yield
    except (ApiError, SpecExportError) as raised:
        error = of_engine(raised)
        for name in sorted(names, key=len, reverse=True):
            rest = (error.param or "").removeprefix(name)
            if rest != error.param and not rest[:1].isidentifier():
                sent, message = names[name] + rest, str(error)
                message = sent + message.removeprefix(name + rest) if message.startswith(name + rest) else message
                raise ApiError(error.code, message, sent, error.headers) from None
        raise error from None


def too_long(field: str, tokens: int, capacity: int) -> ApiError:
    """Clients that shorten a prompt, or turn to another model, look for these words: litellm and LangChain for "prompt
    is too long" or the code, litellm for OpenAI's first words.
    """
    message = (
        f"This model's maximum context length is {capacity} tokens, but your {field} resulted in {tokens} tokens: the "
        f"prompt is too long ({TOO_LONG}), as at most {capacity - 1} tokens leave room for one to generate; shorten "
        "it, or serve a bundle that was built with a larger --max-seq-len"
    )
    return invalid(field, message, TOO_LONG)


def of_grammar(error: GrammarError, request: Common) -> ApiError:
    """The error for a grammar of a whole output, with the field that caused it, if known."""
    refusal = of_engine(error)
    if refusal.status == 400:
        refusal.param = "response_format" if request.structured_outputs is None else "structured_outputs"
    return refusal


def of_engine(error: BaseException) -> ApiError:
    """The error that ended a request, in the form for the client."""
    match error:
        case ApiError():
            return error
        case QueueError(code=code, retry_after=seconds):
            return ApiError(code, str(error), headers={"Retry-After": str(seconds)})
        case GrammarError(code="grammar_busy"):
            return ApiError(error.code, str(error), headers={"Retry-After": BUSY_RETRY})
        case GrammarError():
            return invalid(None, str(error), error.code)
        case MissingPackageError():
            return ApiError("unsupported_parameter", str(error))
        case LongPromptError():
            return too_long(str(error.field), error.tokens, error.capacity)
        case ParameterError(field=name):
            field = f"specexport.{name}" if name in EXTENSION else CALLED.get(name or "", name)  # in requests
            message = str(error)
            if message.startswith(f"{name} "):
                message = f"{field}{message.removeprefix(str(name))}"
            return invalid(field, message, error.code)
        case SessionClosedError():
            return ApiError("shutting_down", "this server is shutting down", headers={"Retry-After": "1"})
    LOG.error("a request failed: %s", error, exc_info=None if isinstance(error, SpecExportError) else error)
    # No details: an engine's messages name files of this machine.
    message = "the engine failed on this request; the server's log says more"
    return ApiError("engine_error", message, headers={"x-should-retry": "false"})
