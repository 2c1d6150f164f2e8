"""Errors in the form of the OpenAI API."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ...errors import (
    GrammarError,
    LongPromptError,
    MissingPackageError,
    ParameterError,
    PromptError,
    QueueError,
    SessionClosedError,
    SpecExportError,
)
from .allowed import allowed, found_at
from .requests import Common, Extension

LOG = logging.getLogger("specexport.serve")
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
QUEUE_STATUS = {"queue_full": 429, "too_many_requests": 429, "queue_timeout": 503, "shutting_down": 503}
BUSY_RETRY = "2"
OF_MESSAGES = ("message ", "there are no messages", "the chat template refuses")
EXTENSION = tuple(field.name for field in msgspec.structs.fields(Extension))
CALLED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}  # options with other names in requests
TOO_LONG = "context_length_exceeded"
SHOWN = 100
MISSING = re.compile(r"Object missing required field `(\w+)`")
PLACE = re.compile(r"(.*) - at (?:`key` in )?`\$\.?(.*)`$", re.DOTALL)

BOUND = re.compile(r"Expected `[^`]+` (of length )?(<=|>=|<|>) (\S+)")
BOUND_WORDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """An error for the client. message: one line. param: the field, as in `messages[0].role`."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers or {}

    @property
    def body(self) -> bytes:
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        message = " ".join(str(self).split())
        return msgspec.json.encode(
            ErrorAnswer(ErrorBody(message, TYPES.get(self.status, default), self.param, self.code))
        )


def unsupported(param: str, reason: str) -> ApiError:
    return ApiError(400, "unsupported_parameter", f"{param} is not supported: {reason}", param)


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param)


def named_as_given(error: ApiError, given: Mapping[str, str]) -> ApiError:
    """The error about the field as the client named it. given: the client's names, by this server's."""
    for own in sorted(given, key=len, reverse=True):
        rest = (error.param or "").removeprefix(own)
        if rest != error.param and not rest[:1].isidentifier():
            named, told = given[own] + rest, str(error)
            about = named + told.removeprefix(own + rest) if told.startswith(own + rest) else told
            return ApiError(error.status, error.code, about, named, error.headers)
    return error


def of_validation(error: msgspec.ValidationError, kind: type, raw: Any) -> ApiError:
    """msgspec says what was expected and where, but not the allowed values of a choice, nor what was found beyond a
    bound. kind: of struct. raw: what was to become one.
    """
    found = PLACE.match(str(error))
    told, where = (str(error), "") if found is None else (found[1], found[2])
    missing = MISSING.fullmatch(told)
    if missing is not None:
        where = ".".join(filter(None, (where, missing[1])))
        return invalid(where, f"{where} is missing")
    wrong = told.removeprefix("Invalid enum value ")
    if wrong != told:
        return invalid(where, f"{where} is {wrong[:SHOWN]}; it must be {' or '.join(allowed(kind, where))}")
    beyond = _beyond(told, where, found_at(raw, where))
    return invalid(where or None, beyond or (f"{where}: {told}" if where else told))


def _beyond(told: str, where: str, value: Any) -> str | None:
    """The message for a number or a length that is out of bounds; None where `told` is about something else."""
    bound = BOUND.fullmatch(told)
    if bound is None:
        return None
    limit = f"it must be {BOUND_WORDS[bound[2]]} {bound[3]}"
    if bound[1] is None:
        return f"{where} is {value!r}"[:SHOWN] + f"; {limit}" if isinstance(value, int | float) else None
    return f"{where} has length {len(value)}; {limit}" if isinstance(value, str | list | dict) else None


def too_long(field: str, size: str, capacity: int) -> ApiError:
    """Clients that shorten a prompt, or turn to another model, look for these words: litellm and LangChain for "prompt
    is too long" or the code, litellm for OpenAI's first words.
    """
    told = (
        f"This model's maximum context length is {capacity} tokens, but your {field} resulted in {size}: the prompt is "
        f"too long ({TOO_LONG}), as at most {capacity - 1} tokens leave room for one to generate; shorten it, or serve "
        "a bundle that was built with a larger --max-seq-len"
    )
    return invalid(field, told, TOO_LONG)


def of_grammar(error: GrammarError, request: Common) -> ApiError:
    """The error for a grammar of a whole output, with the field that caused it, if known."""
    found = of_engine(error)
    if found.status == 400:
        found.param = "response_format" if request.structured_outputs is None else "structured_outputs"
    return found


def of_engine(error: BaseException) -> ApiError:
    """The error that ended a request, in the form for the client."""
    match error:
        case ApiError():
            return error
        case QueueError(code=code, retry_after=seconds):
            return ApiError(QUEUE_STATUS[code], code, str(error), headers={"Retry-After": str(seconds)})
        case GrammarError(code="grammar_busy"):
            return ApiError(503, error.code, str(error), headers={"Retry-After": BUSY_RETRY})
        case GrammarError():
            return invalid(None, str(error), error.code)
        case MissingPackageError():
            return ApiError(400, "unsupported_parameter", str(error))
        case LongPromptError():
            return too_long("messages" if error.of_messages else "prompt", f"{error.tokens} tokens", error.capacity)
        case PromptError():
            return invalid(_of_prompt(str(error)), str(error))
        case ParameterError():
            return invalid(_named(str(error)), str(error))
        case SessionClosedError():
            return ApiError(503, "shutting_down", "this server is shutting down", headers={"Retry-After": "1"})
    LOG.error("a request failed: %s", error, exc_info=None if isinstance(error, SpecExportError) else error)
    # No details: an engine's messages name files of this machine.
    told = "the engine failed on this request; the server's log says more"
    return ApiError(500, "engine_error", told, headers={"x-should-retry": "false"})


def _of_prompt(message: str) -> str | None:
    """The field that a `PromptError` is about."""
    if message.startswith("the prompt "):
        return "prompt"
    return "messages" if message.startswith(OF_MESSAGES) else None


def _named(message: str) -> str | None:
    """The parameter that a `ParameterError` begins with, by its name in requests."""
    first: Any = message.partition(" ")[0]
    if first in EXTENSION:
        return f"specexport.{first}"
    known = (first.isidentifier() and "_" in first) or first in ("temperature", "seed")
    return CALLED.get(first, first if known else None)
