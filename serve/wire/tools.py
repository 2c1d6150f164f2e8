"""Tools on the wire: those that a request offers, and the calls in its history."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...errors import GrammarError, ToolsError
from ...runtime.session import Session
from ...runtime.tools.tool import Tool
from ...runtime.tools.tool_format import ToolFormat
from .errors import invalid, unsupported
from .requests import Message, ToolDefinition

LETTERS = string.ascii_letters + string.digits
MAX_LEVELS = 64  # templates and masks recurse into nested values, on the interpreter's stack


def offered(definitions: Sequence[ToolDefinition]) -> list[Tool]:
    """Raises `ApiError`, also for an invalid schema."""
    tools = []
    for place, entry in enumerate(definitions):
        where = f"tools[{place}].function.parameters"
        tool = entry.function
        if _too_deep(tool.parameters or {}):
            raise invalid(where, f"{where} is nested in more than {MAX_LEVELS} levels; flatten it", "invalid_schema")
        try:
            tools.append(Tool(tool.name, tool.description, tool.parameters))
        except GrammarError as error:
            raise invalid(where, str(error), "invalid_schema") from None
    return tools


def form_of(session: Session, field: str) -> ToolFormat:
    try:
        return session.tool_format
    except ToolsError as error:
        raise unsupported(field, str(error)) from None


class History:
    """Messages with calls and tool results, in the form for templates."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._called: dict[str, str] = {}  # names of the tools, by the calls' ids

    def calls(self, message: Message, where: str) -> list[dict[str, Any]]:
        """The calls of an assistant's message. Raises `ApiError`."""
        form = form_of(self._session, f"{where}.tool_calls")
        if message.role != "assistant":
            raise invalid(f"{where}.tool_calls", f"{where} has tool_calls, which only the assistant has", CODE)
        calls = message.tool_calls or []
        if len(calls) > 1 and form.next is None:
            reason = f"{where} has {len(calls)} calls; this model's chat template takes one at a time"
            raise invalid(f"{where}.tool_calls", reason, CODE)
        rendered = []
        for place, call in enumerate(calls):
            self._called[call.id] = call.function.name
            at = f"{where}.tool_calls[{place}].function.arguments"
            arguments = _arguments(call.function.arguments, at, form.takes_texts)
            function = {"name": call.function.name, "arguments": arguments}
            rendered.append({"id": form.call_id(call.id), "type": "function", "function": function})
        return rendered

    def result(self, message: Message, where: str) -> dict[str, Any]:
        """The fields of a tool's message in addition to its content. Raises `ApiError`."""
        form = form_of(self._session, f"{where}.role")
        if not form.takes_results:
            raise unsupported(f"{where}.role", "this model's chat template does not render tool results")
        name = message.tool_call_id
        if name is None:
            raise invalid(f"{where}.tool_call_id", f"{where}.tool_call_id is missing; a tool answers a call", CODE)
        if name not in self._called:
            reason = f"{where}.tool_call_id is {name[:64]!r}; no earlier call has that id"
            raise invalid(f"{where}.tool_call_id", reason, CODE)
        return {"tool_call_id": form.call_id(name), "name": message.name or self._called[name]}


CODE = "invalid_tool_history"


def _arguments(arguments: str | dict[str, Any] | None, where: str, takes_texts: bool) -> dict[str, Any] | str:
    """Arguments that are no object, because the answer was cut off, as the text that the model wrote, or as none for a
    template that cannot write a text: an agent must be able to go on with its own history.
    """
    value: Any = arguments
    if isinstance(arguments, str):
        try:
            value = msgspec.json.decode(arguments)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        return arguments if takes_texts and isinstance(arguments, str) and arguments.strip() else {}
    if _too_deep(value):
        raise invalid(where, f"{where} is nested in more than {MAX_LEVELS} levels; flatten it", CODE)
    return value


def _too_deep(value: Any) -> bool:
    """Without recursion, which is what must be prevented."""
    level = [value]
    for _ in range(MAX_LEVELS):
        nested = [one for one in level if isinstance(one, Mapping | list)]
        level = [item for one in nested for item in (one.values() if isinstance(one, Mapping) else one)]
    return any(isinstance(one, Mapping | list) for one in level)


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(LETTERS) for _ in range(24))
