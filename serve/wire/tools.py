"""Tools on the wire: what a request offers, what its history says was called, and what its output may call."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...errors import GrammarError, ToolsError
from ...runtime.grammar.grammar import Grammar
from ...runtime.session import Session
from ...runtime.tools.bounds import tools_grammar
from ...runtime.tools.formats import ToolFormat
from ...runtime.tools.parameters import loosened
from ...runtime.tools.tool import Tool
from .constraints import ANY_OBJECT, check_strict
from .errors import ApiError, invalid, of_engine, unsupported
from .requests import ChatRequest, Message, NamedTool, ToolDefinition

POSITION = re.compile(r"invalid tools: at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)", re.DOTALL)
OF_TOOL = re.compile(r"arguments_(\d+)(?:_\d+_json)?: ")
LETTERS = string.ascii_letters + string.digits
MOST_LEVELS = 64  # templates and masks go down into what is nested, on the interpreter's stack


@dataclass(frozen=True)
class Calls:
    """What a request may call. grammar: bounds the whole answer. places: of those it may call, among the tools.
    demanded: whether it must call one. relaxed: places of tools whose schema cannot be kept and need not be.
    """

    form: ToolFormat
    tools: tuple[Tool, ...]
    grammar: Grammar
    places: tuple[int, ...]
    demanded: bool
    parallel: bool
    strict: frozenset[int]
    relaxed: frozenset[int] = frozenset()

    @property
    def bounded(self) -> list[Tool]:
        """Those that it may call, as they bound it."""
        return _schemas(self.form, self.tools, self.places, self.relaxed)

    def relax(self, error: GrammarError) -> Calls:
        """With any object as arguments of the tool that is to blame. Raises `ApiError` where none is, or it is strict.

        As OpenAI has it: a schema that is not strict is kept as far as can be.
        """
        place = _to_blame(error, self)
        if place is None or place in self.strict | self.relaxed:
            raise of_tools(error, self)
        found = replace(self, relaxed=self.relaxed | {place})
        return replace(found, grammar=tools_grammar(self.form, found.bounded, self.demanded, self.parallel))


def calls_of(request: ChatRequest, session: Session) -> Calls | None:
    """None where it may call nothing: without tools, and with `tool_choice: "none"`. Raises `ApiError`."""
    choice = request.tool_choice
    if not request.tools:
        if choice == "required" or isinstance(choice, NamedTool):
            raise invalid("tool_choice", "tool_choice asks for a call, but there are no tools")
        return None
    tools = offered(request.tools)
    if choice == "none":
        return None
    form = form_of(session, "tools")
    named = choice.function.name if isinstance(choice, NamedTool) else None
    places = tuple(place for place, tool in enumerate(tools) if named in (None, tool.name))
    if not places:
        raise invalid("tool_choice", f"tool_choice names {named!r}, which is none of the tools")
    if request.structured_outputs is not None or getattr(request.response_format, "type", "text") != "text":
        field = "response_format" if request.structured_outputs is None else "structured_outputs"
        raise unsupported(field, "it excludes tools; leave one of them out, or say tool_choice: none")
    parallel = request.parallel_tool_calls is not False and named is None
    demanded = choice == "required" or named is not None
    strict = frozenset(place for place, tool in enumerate(request.tools) if tool.function.strict)
    relaxed = _too_much(form, tools, places, strict)
    try:
        grammar = tools_grammar(form, _schemas(form, tools, places, relaxed), demanded, parallel)
    except GrammarError as error:  # of all together
        raise invalid("tools", str(error), error.code) from None
    return Calls(form, tuple(tools), grammar, places, demanded, parallel, strict, relaxed)


def _schemas(form: ToolFormat, tools: Sequence[Tool], places: Sequence[int], relaxed: Collection[int]) -> list[Tool]:
    """Of the tools at `places`, the relaxed ones with what can always be kept."""

    def loose(tool: Tool) -> Tool:
        return replace(tool, parameters=ANY_OBJECT if form.parameters is None else loosened(tool.schema))

    return [loose(tools[place]) if place in relaxed else tools[place] for place in places]


def _too_much(
    form: ToolFormat, tools: Sequence[Tool], places: Sequence[int], strict: Collection[int]
) -> frozenset[int]:
    """Places of tools that are refused alone too, before anything is compiled. Raises `ApiError` for a strict one."""
    found = set()
    for place in places:
        try:
            tools_grammar(form, [tools[place]], False, False)
        except GrammarError as error:
            if place in strict:
                raise invalid(*_of_tool(place, tools[place], str(error)), error.code) from None
            found.add(place)
    return frozenset(found)


def _of_tool(place: int, tool: Tool, reason: str) -> tuple[str, str]:
    where = f"tools[{place}].function.parameters"
    return where, f"{where} ({tool.name}): {reason.removeprefix('invalid tools: ')}"


def offered(given: Sequence[ToolDefinition]) -> list[Tool]:
    """Raises `ApiError`."""
    tools = []
    for place, entry in enumerate(given):
        where = f"tools[{place}].function.parameters"
        tool = entry.function
        if _deeper(tool.parameters or {}, MOST_LEVELS):
            raise invalid(where, f"{where} is nested in more than {MOST_LEVELS} levels; flatten it", "invalid_schema")
        if tool.strict and tool.parameters is not None:
            check_strict({"type": "object", **tool.parameters}, "parameters", where)
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


def of_tools(error: GrammarError, calls: Calls) -> ApiError:
    """With the field that is to blame, where it is: llguidance tells the grammar's line, and each tool has its own."""
    found = of_engine(error)
    if found.status != 400:
        return found
    told, place = POSITION.match(str(error)), _to_blame(error, calls)
    if told is None or place is None:
        return invalid("tools", str(error), found.code)
    return invalid(*_of_tool(place, calls.tools[place], told[2]), found.code)


def _to_blame(error: GrammarError, calls: Calls) -> int | None:
    told = POSITION.match(str(error))
    lines = calls.grammar.text.split("\n")
    line = lines[int(told[1]) - 1] if told and 0 < int(told[1]) <= len(lines) else ""
    of_tool = OF_TOOL.match(line)
    return None if of_tool is None else calls.places[int(of_tool[1])]


class History:
    """Messages with calls and what the tools answered, as templates take them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._called: dict[str, str] = {}  # names of the tools, by the calls' ids

    def calls(self, message: Message, where: str) -> list[dict[str, Any]]:
        """Of an assistant's message. Raises `ApiError`."""
        form = form_of(self._session, f"{where}.tool_calls")
        if message.role != "assistant":
            raise invalid(f"{where}.tool_calls", f"{where} has tool_calls, which only the assistant has", CODE)
        calls = message.tool_calls or []
        if len(calls) > 1 and form.next is None:
            told = f"{where} has {len(calls)} calls; this model's chat template takes one at a time"
            raise invalid(f"{where}.tool_calls", told, CODE)
        found = []
        for place, call in enumerate(calls):
            self._called[call.id] = call.function.name
            arguments = _arguments(call.function.arguments, f"{where}.tool_calls[{place}].function.arguments")
            function = {"name": call.function.name, "arguments": arguments}
            found.append({"id": form.call_id(call.id), "type": "function", "function": function})
        return found

    def result(self, message: Message, where: str) -> dict[str, Any]:
        """Of a tool's message, what it has beside its content. Raises `ApiError`."""
        form = form_of(self._session, f"{where}.role")
        if not form.takes_results:
            raise unsupported(f"{where}.role", "this model's chat template leaves out what tools answer")
        given = message.tool_call_id
        if given is None:
            raise invalid(f"{where}.tool_call_id", f"{where}.tool_call_id is missing; a tool answers a call", CODE)
        if given not in self._called:
            told = f"{where}.tool_call_id is {given[:64]!r}; no call in front of it has that id"
            raise invalid(f"{where}.tool_call_id", told, CODE)
        return {"tool_call_id": form.call_id(given), "name": message.name or self._called[given]}


CODE = "invalid_tool_history"


def _arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        raise invalid(where, f"{where} is empty; expected an object as JSON, {{}} for none", CODE)
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise invalid(where, f"{where} is not JSON: {str(error)[:200]}", CODE) from None
    if not isinstance(found, dict):
        raise invalid(where, f"{where} is a {type(found).__name__} as JSON; expected an object", CODE)
    if _deeper(found, MOST_LEVELS):
        raise invalid(where, f"{where} is nested in more than {MOST_LEVELS} levels; flatten it", CODE)
    return found


def _deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested in more levels than that. No recursion: that is what is prevented."""
    level = [value]
    for _ in range(levels):
        nested = [one for one in level if isinstance(one, Mapping | list)]
        level = [item for one in nested for item in (one.values() if isinstance(one, Mapping) else one)]
    return any(isinstance(one, Mapping | list) for one in level)


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(LETTERS) for _ in range(24))
