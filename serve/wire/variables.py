"""Variables that a request sets in the chat template."""

from __future__ import annotations

from typing import Any

from ...runtime.session import Session
from ...runtime.text.chat_template import is_own
from .errors import ApiError, invalid
from .requests import ChatRequest, TokenizeRequest

FIELD, EFFORT = "chat_template_kwargs", "reasoning_effort"


def variables_of(
    request: ChatRequest | TokenizeRequest, session: Session, strict: bool
) -> tuple[dict[str, Any], list[str]]:
    """(variables that the template reads, names of fields that it does not read).

    Raises `ApiError` for a variable that requests may not set; with `strict` for one that the template does not read.
    """
    given: dict[str, Any] = dict(request.chat_template_kwargs or {})
    own = next(filter(is_own, given), None)
    if own is not None:
        where = f"{FIELD}.{own}"
        raise invalid(where, f"{where} cannot be set by requests: it comes from messages, tools and the model")
    names = {name: f"{FIELD}.{name}" for name in given}
    if request.reasoning_effort is not None and EFFORT not in given:
        given[EFFORT], names[EFFORT] = request.reasoning_effort, EFFORT
    read = session.template_variables
    unread = [names[name] for name in given if name not in read]
    if unread and strict:
        raise ApiError(400, "unknown_parameter", f"{unread[0]!r} is not read by the chat template", unread[0])
    return {name: value for name, value in given.items() if name in read}, unread
