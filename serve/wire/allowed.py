"""The types and the allowed values of a request's field, by its path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

STEP = re.compile(r"\[(?:\d+|\.\.\.)\]|[^.\[\]]+")


def types_at(kind: type, where: str) -> list[inspect.Type]:
    """The types that the field at `where` (`messages[0].role`) of a struct may have; none for a place within a value of
    any type.
    """
    found = [inspect.type_info(kind)]
    for step in STEP.findall(where):
        found = [one for outer in found for one in _within(outer, step)]
    return found


def allowed(kinds: Iterable[inspect.Type]) -> list[str]:
    """The values of these types, as JSON, as far as they are listed one by one."""
    return [value for one in kinds for value in _values(one)]


def found_at(raw: Any, where: str) -> Any:
    """The value at `where` in a parsed body; None where the path does not say which one it is (`logit_bias[...]`)."""
    for step in STEP.findall(where):
        try:
            raw = raw[int(step[1:-1]) if step[0] == "[" else step]
        except (LookupError, TypeError, ValueError):
            return None
    return raw


def _within(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match outer:
        case inspect.StructType(fields=fields):
            named = [field.type for field in fields if field.encode_name == step]
        case inspect.ListType(item_type=item) if step[0] == "[":
            named = [item]
        case inspect.DictType(value_type=value):
            named = [value]
        case _:
            named = []
    for one in named:
        yield from parts(one)


def parts(one: inspect.Type) -> Iterator[inspect.Type]:
    """Each type of a union, without the annotations that restrict or describe it."""
    if isinstance(one, inspect.Metadata):
        yield from parts(one.type)
    elif isinstance(one, inspect.UnionType):
        for part in one.types:
            yield from parts(part)
    else:
        yield one


def _values(one: inspect.Type) -> list[str]:
    match one:
        case inspect.LiteralType(values=values):
            return [msgspec.json.encode(value).decode() for value in values]
        case inspect.IntType(ge=int(low), le=int(high)):
            return [f"a number from {low} to {high}"]
        case inspect.StructType():
            return ["an object"]
    return []
