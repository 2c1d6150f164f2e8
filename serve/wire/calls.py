"""What an output may call: the tools of a request, and the grammar that constrains its calls."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic

from ...errors import GrammarError
from ...runtime.grammar.grammar import Grammar
from ...runtime.grammar.thinking import Thinking
from ...runtime.session import Session
from ...runtime.tools.bounds import check_limits, schema_size, tools_grammar
from ...runtime.tools.kinds import relaxed_schema
from ...runtime.tools.tool import Tool
from ...runtime.tools.tool_format import ToolFormat
from .constraints import ANY_OBJECT
from .errors import ApiError, invalid, of_engine
from .requests import ChatRequest, NamedTool
from .tools import form_of, offered

OF_TOOL = re.compile(r"arguments_(\d+)(?:_\d+_json)?: ")
BUSY = "grammar_busy"
PATIENCE = 2.0  # seconds for finding out what can be enforced of a request's tools


@dataclass(frozen=True)
class Calls:
    """What a request may call. places: indices of the tools that it may call. demanded: whether it must call one.
    answers: whether it must call or answer in a form that the request asks for. relaxed: for each tool without `strict`
    whose schema cannot be enforced, what is enforced instead, by index.
    """

    form: ToolFormat
    tools: tuple[Tool, ...]
    places: tuple[int, ...]
    demanded: bool
    parallel: bool
    strict: frozenset[int]
    answers: bool = False
    relaxed: Mapping[int, Tool] = field(default_factory=dict)

    @cached_property
    def bounded(self) -> list[Tool]:
        """The tools that it may call, as they are enforced."""
        return [self.relaxed.get(place, self.tools[place]) for place in self.places]

    @cached_property
    def grammar(self) -> Grammar:
        """The grammar of its calls, and of text if it may write some. Raises `GrammarError` for what is too large
        before it is compiled.
        """
        return tools_grammar(self.form, self.bounded, self.demanded or self.answers, self.parallel)

    @property
    def free(self) -> list[int]:
        """Indices of the tools whose schemas need not be enforced: as in OpenAI's API, without `strict` only as far as
        possible.
        """
        return [place for place in self.places if place not in self.strict]

    def relax(self, tools: Mapping[int, Tool]) -> Calls:
        """tools: by index, none of them strict."""
        assert not self.strict & {*tools}
        return replace(self, relaxed={**self.relaxed, **tools}) if tools else self

    def relax_longest(self, count: int) -> Calls:
        """Relax the `count` longest of them to any object."""
        sizes = {place: schema_size(tool) for place, tool in zip(self.places, self.bounded, strict=True)}
        longest = sorted(self.free, key=lambda place: -sizes[place])
        return self.relax({place: _any_object(self.tools[place]) for place in longest[:count]})


def calls_of(request: ChatRequest, session: Session) -> Calls | None:
    """None if it may call nothing: without tools, and with `tool_choice: "none"`. Raises `ApiError`."""
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
        raise invalid("tool_choice", f"tool_choice names {named!r}, which is not one of the tools")
    parallel = request.parallel_tool_calls is not False and named is None
    demanded = choice == "required" or named is not None
    formed = request.structured_outputs is not None or getattr(request.response_format, "type", "text") != "text"
    if formed:  # a call is one by how the answer begins: a string in JSON may look like one
        form = replace(form, leads=True)
    strict = frozenset(place for place, tool in enumerate(request.tools) if tool.function.strict)
    calls = Calls(form, tuple(tools), places, demanded, parallel, strict, answers=formed and not demanded)
    _check(calls)
    return calls


def _check(calls: Calls) -> None:
    """Checks that need no compiling: the strict tools one by one, and all with only the minimum enforced."""
    for place in calls.strict.intersection(calls.places):
        try:
            _check_writable(calls.form, calls.tools[place])
        except GrammarError as error:
            raise _of_tool(place, calls.tools[place], error) from None
    try:
        _ = calls.relax_longest(len(calls.free)).grammar
    except GrammarError as error:
        raise invalid("tools", str(error), error.code) from None


def bounded(calls: Calls, session: Session, thoughts: Thinking | None) -> tuple[Calls, Grammar | None]:
    """(calls, their grammar, compiled). Of a tool without `strict` as much is enforced as can be: the one that the
    compiler refuses is relaxed step by step. All of them are, if none is to blame or `PATIENCE` is over. Raises
    `ApiError`, also while another grammar is compiling.
    """
    ways = {place: _ways(calls.form, calls.tools[place]) for place in calls.free}
    strictest = {place: next(way) for place, way in ways.items()}
    relaxed = calls.relax({place: tool for place, tool in strictest.items() if tool is not calls.tools[place]})
    end = monotonic() + PATIENCE
    while True:
        calls = _within_limits(relaxed)
        try:
            return calls, session.prepare_grammar(calls.grammar.after(thoughts))
        except GrammarError as error:
            place = _to_blame(error, calls)
            looser = next(ways[place], None) if place in ways else None
            if looser is not None and place is not None and monotonic() < end:
                relaxed = relaxed.relax({place: looser})
            else:
                relaxed = calls.relax_longest(len(calls.free))
            if error.code == BUSY or place in calls.strict or relaxed.relaxed == calls.relaxed:
                raise of_tools(error, calls) from None


def _ways(form: ToolFormat, tool: Tool) -> Iterator[Tool]:
    """What may be enforced for it, the strictest first, as far as no compiler is needed to know; that it is an object
    can always be enforced.
    """
    with suppress(GrammarError):
        check_limits([tool])
        looser = (replace(tool, parameters=relaxed_schema(tool.schema, values)) for values in (True, False))
        for way in (tool, *(looser if form.parameters is not None else ())):
            with suppress(GrammarError):
                _check_writable(form, way)
                yield way
    yield _any_object(tool)


def _check_writable(form: ToolFormat, tool: Tool) -> None:
    """Raises `GrammarError` if no grammar of a call of the tool can be written, whatever its name."""
    tools_grammar(form, [replace(tool, name="f")], demanded=True, parallel=False)


def _any_object(tool: Tool) -> Tool:
    return replace(tool, parameters=ANY_OBJECT)


def _within_limits(calls: Calls) -> Calls:
    """Relaxes only as many of the longest as necessary; with all relaxed, they are within the limits: see `_check`."""

    def fits(count: int) -> bool:
        try:
            _ = calls.relax_longest(count).grammar
        except GrammarError:
            return False
        return True

    return calls.relax_longest(bisect_left(range(len(calls.free)), True, key=fits))


def of_tools(error: GrammarError, calls: Calls) -> ApiError:
    """The error with the tool that caused it, if known."""
    refusal, place = of_engine(error), _to_blame(error, calls)
    if refusal.status != 400:
        return refusal
    if place is None:
        return invalid("tools", str(error), refusal.code)
    return _of_tool(place, calls.tools[place], error)


def _of_tool(place: int, tool: Tool, error: GrammarError) -> ApiError:
    where = f"tools[{place}].function.parameters"
    return invalid(where, f"{where} ({tool.name}): {error.reason}", error.code)


def _to_blame(error: GrammarError, calls: Calls) -> int | None:
    """The index of the tool whose line of the grammar is wrong: each has its own lines."""
    lines = calls.grammar.text.split("\n")
    number = error.line or 0
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    of_tool = OF_TOOL.match(line)
    return None if of_tool is None else calls.places[int(of_tool[1])]
