"""Why a value is no struct, such as a request: the field at fault, what it is, and what it must be.

msgspec's errors are texts alone, which are read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

from .errors import EXTENSION, ApiError, invalid

SHOWN = 100
# A reason may quote what the client sent; a place is made of this server's names alone.
MESSAGE = re.compile(r"(.*?)(?: - at (`key` in )?`\$\.?([^`]*)`)?", re.DOTALL)
STEP = re.compile(r"\[(?:\d+|\.\.\.)\]|[^.\[\]]+")
FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
BOUND = re.compile(r"Expected `\w+` (of length )?(<=|>=) (.+?)(?:\.0)?")


def of_validation(error: msgspec.ValidationError, kind: type, raw: Any) -> ApiError:
    """kind: of struct. raw: what was to become one."""
    parts = MESSAGE.fullmatch(str(error))
    assert parts is not None
    reason, where, value = str(parts[1]), "", raw
    types = list(_alternatives(inspect.type_info(kind)))
    for step in STEP.findall(parts[3] or ""):
        types = [one for outer in types for one in _inner(outer, step)]
        if step == "[...]":
            step = _wrong_key(get_type_hints(kind, include_extras=True)[where], value)
        in_list = isinstance(value, list)  # a client's key may look like an index
        value = value[int(step[1:-1]) if in_list else step]
        where += step if in_list or not where else f".{step[:SHOWN]}"
    found = f"{where} is {repr(value)[:SHOWN]}"
    if field := FIELD.fullmatch(reason):
        where = f"{where}.{field[2][:SHOWN]}" if where else field[2]
        if field[1] == "missing required":
            return invalid(where, f"{where} is missing")
        # No other client has that object, so it is a mistake.
        return invalid(where, f"{where} is not a known field; known are {', '.join(EXTENSION)}", "unknown_parameter")
    if parts[2]:
        reason = f"a key: {reason}"
    elif bound := BOUND.fullmatch(reason):
        found = f"{where} has length {len(value)}" if bound[1] else found
        return invalid(where, f"{found}; it must be {'at most' if bound[2] == '<=' else 'at least'} {bound[3]}")
    elif reason.startswith("Invalid enum value"):
        return invalid(where, f"{found}; it must be {' or '.join(_allowed(types))}")
    return invalid(where or None, f"{where}: {reason}" if where else reason)


def _wrong_key(hint: Any, value: Mapping[str, Any]) -> str:
    """The first key of an object whose value is at fault: msgspec does not say which. hint: the object's type."""
    for key, one in value.items():
        try:
            msgspec.convert({key: one}, hint)
        except msgspec.ValidationError:
            return key
    raise AssertionError("each value fits alone")


def _inner(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match outer:
        case inspect.StructType(fields=fields):
            types = [field.type for field in fields if field.encode_name == step]
        case inspect.ListType(item_type=item):
            types = [item]
        case _:
            types = []
    for one in types:
        yield from _alternatives(one)


def _alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    """Each type of a union, without the annotations that describe it."""
    if isinstance(one, inspect.Metadata):
        yield from _alternatives(one.type)
    elif isinstance(one, inspect.UnionType):
        for part in one.types:
            yield from _alternatives(part)
    else:
        yield one


def _allowed(types: list[inspect.Type]) -> Iterator[str]:
    """What a value may be that is none of a choice's."""
    choices = [choice for one in types if isinstance(one, inspect.LiteralType) for choice in one.values]
    yield from (msgspec.json.encode(choice).decode() for choice in choices)
    yield from ("an object" for one in types if isinstance(one, inspect.StructType))
    yield from (f"a number from {one.ge} to {one.le}" for one in types if isinstance(one, inspect.IntType))
