"""From tools to a grammar: once a call begins, its name and its arguments are constrained; the text before it is not.

The grammar is in llguidance's dialect of Lark. A lazy rule ends with the first trigger, so what may follow is a
function of the text alone, wherever a round ends. A token that holds a trigger's end and more is allowed if the rest
is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...errors import GrammarError
from ..grammar.grammar import Grammar
from ..grammar.lark import ANY, TEXT, as_regex, literal, tokens, until
from ..grammar.limits import check_length, check_schema, too_deep
from .parameters import ParameterRules
from .tool import MAX_TOOLS, Tool
from .tool_format import ToolFormat

TOLD = ("description", "title", "$comment")
KEY = r"KEY: /[\w.-]{1,64}/"  # for arguments without a known schema
VALUES = ("const", "enum", "default", "examples")  # no schemas


def tools_grammar(form: ToolFormat, tools: Sequence[Tool], demanded: bool, parallel: bool) -> Grammar:
    """demanded: the output is calls and nothing else; otherwise it may be text, followed by calls. parallel: whether
    there may be several. Raises `GrammarError`.
    """
    _check(form, tools)
    further = f"({_literal(form, form.next)} call)*" if parallel and form.next is not None else ""
    calls = [_literal(form, form.opening), "call", further, _literal(form, form.end)]
    lines = [
        f"calls: {' '.join(filter(None, calls))}",
        f"call: {' | '.join(f'call_{place}' for place in range(len(tools)))}",
    ]
    for place, tool in enumerate(tools):
        closing = f" {_literal(form, form.closing)}" if form.closing and form.parameters is None else ""
        lines.append(f"call_{place}: {_literal(form, tool.name + form.between)} arguments_{place}{closing}")
        lines += _arguments(form, place, tool)
    if form.parameters is not None:
        lines += until("value", form.parameters.text_end, "", dict(form.atoms), form.free, may_stop=False)
        lines += [KEY, f"anything: %json {json.dumps({'x-guidance': _options(form)})}"]
        lines += [TEXT] if demanded else []  # otherwise it exists
    return Grammar("tools", "\n".join([*_start(form, demanded), *lines]), shown=form.shown)


def _start(form: ToolFormat, demanded: bool) -> list[str]:
    trigger = _literal(form, form.trigger)
    if demanded:
        return [f"start: {trigger} calls"]
    if not form.leads:
        return [*until("start", form.trigger, "calls", dict(form.atoms), form.free, may_stop=True), TEXT]
    free = tokens(form.free) if form.free else None
    more = f" ({free} ANY)*" if free else ""
    lines = [f"start: {trigger} calls | TEXT{more}", f"TEXT: /{ANY}/ & ~/{as_regex(form.trigger)}{ANY}/"]
    return [*lines, f"ANY: /{ANY}/"] if free else lines


def _arguments(form: ToolFormat, place: int, tool: Tool) -> list[str]:
    if form.parameters is None:
        return [f"arguments_{place}: %json {_schema(form, tool)}"]
    rules = ParameterRules(form.parameters, form.closing, dict(form.atoms), _options(form))
    return rules.lines(f"arguments_{place}", _bare(tool.schema))


def check_limits(tools: Sequence[Tool]) -> None:
    """Checks the limits of their schemas together. Raises `GrammarError`."""
    try:
        schemas = [_bare(tool.schema) for tool in tools]
        check_length("tools", _written(schemas))
        check_schema(schemas)
    except RecursionError:
        raise too_deep() from None


def _check(form: ToolFormat, tools: Sequence[Tool]) -> None:
    if not 1 <= len(tools) <= MAX_TOOLS:
        raise GrammarError(f"there are {len(tools)}, expected 1 to {MAX_TOOLS}", "tools", kind="tools")
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise GrammarError(f"{twice!r} appears twice; give each a unique name", "tools", kind="tools")
    check_limits(tools)
    for place, tool in enumerate(tools):
        _arguments(form, place, tool)


def schema_size(tool: Tool) -> int:
    """Number of characters of its schema that count: without descriptions for people."""
    return len(_written(_bare(tool.schema)))


def _written(schema: Any) -> str:
    return json.dumps(schema, allow_nan=False, separators=(",", ":"))


def _schema(form: ToolFormat, tool: Tool) -> str:
    return json.dumps({**_bare(tool.schema), "x-guidance": _options(form)}, allow_nan=False)


def _options(form: ToolFormat) -> dict[str, Any]:
    blank = " " * form.spaced
    # Overrides the schema's own options; a lenient compiler would drop what it does not know.
    return {
        "lenient": False,
        "coerce_one_of": False,
        "whitespace_flexible": False,
        "item_separator": f",{blank}",
        "key_separator": f":{blank}",
    }


def _bare(schema: Any) -> Any:
    """The schema without descriptions for people, which may be most of it. Properties with such names are kept."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name not in TOLD or not isinstance(value, str)}
    return {name: value if name in VALUES else _bare(value) for name, value in kept.items()}


def _literal(form: ToolFormat, text: str) -> str:
    return literal(text, dict(form.atoms))
