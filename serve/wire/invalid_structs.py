"""What a value that is no struct, such as a request, is refused for.

msgspec's errors are texts alone. Of these only the place is read, here and nowhere else; what is wrong at the place
follows from the struct's types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import Any

import msgspec
from msgspec import inspect

from .allowed import allowed, found_at, types_at
from .errors import ApiError, invalid

SHOWN = 100
PLACE = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", re.DOTALL)
BOUNDS = {"le": (le, "at most"), "ge": (ge, "at least"), "lt": (lt, "below"), "gt": (gt, "above")}
SIZED: dict[type, Any] = {str: inspect.StrType, list: inspect.ListType, dict: inspect.DictType}
LENGTHS = {"max_length": BOUNDS["le"], "min_length": BOUNDS["ge"]}


def of_validation(error: msgspec.ValidationError, kind: type, raw: Any) -> ApiError:
    """kind: of struct. raw: what was to become one."""
    found = PLACE.fullmatch(str(error))
    assert found is not None
    told, where = found[1], found[2] or ""
    value, kinds = found_at(raw, where), types_at(kind, where)
    for name, reason in _keys(kinds, value):
        where = ".".join(filter(None, (where, name)))
        return invalid(where, f"{where} {reason}")
    if _no_choice(kinds, value):
        return invalid(where, f"{where} is {repr(value)[:SHOWN]}; it must be {' or '.join(allowed(kinds))}")
    beyond = next(_beyond(kinds, value), None)
    if beyond is not None:
        return invalid(where, f"{where} {beyond}")
    return invalid(where or None, f"{where}: {told}" if where else told)


def _keys(kinds: Sequence[inspect.Type], value: Any) -> Iterator[tuple[str, str]]:
    """Missing keys, and unknown ones where the struct refuses them."""
    for one in kinds:
        if isinstance(one, inspect.StructType) and isinstance(value, Mapping):
            known = {field.encode_name: field.required for field in one.fields}
            if one.forbid_unknown_fields:
                others = f"is not a known field; known are {', '.join(known)}"
                yield from ((name, others) for name in value if name not in known)
            yield from ((name, "is missing") for name, required in known.items() if required and name not in value)


def _no_choice(kinds: Sequence[inspect.Type], value: Any) -> bool:
    """Whether it is of the type of a choice's values, and none of them."""
    values = [choice for one in kinds if isinstance(one, inspect.LiteralType) for choice in one.values]
    return value not in values and type(value) in map(type, values)


def _beyond(kinds: Sequence[inspect.Type], value: Any) -> Iterator[str]:
    """What is said of a number or a length out of bounds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for one in kinds:
            if isinstance(one, inspect.IntType | inspect.FloatType):
                for limit in _crossed(one, BOUNDS, value):
                    yield f"is {value!r}"[:SHOWN] + f"; it must be {limit}"
    elif isinstance(value, str | list | dict):
        for one in kinds:
            if isinstance(one, SIZED[type(value)]):
                for limit in _crossed(one, LENGTHS, len(value)):
                    yield f"has length {len(value)}; it must be {limit}"


def _crossed(kind: inspect.Type, bounds: Mapping[str, tuple[Any, str]], number: float) -> Iterator[str]:
    for name, (holds, words) in bounds.items():
        limit = getattr(kind, name)
        if limit is not None and not holds(number, limit):
            yield f"{words} {limit}"
