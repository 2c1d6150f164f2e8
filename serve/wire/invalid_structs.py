"""Why a value is no struct, such as a request: the field at fault, what it is, and what it must be.

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

from .errors import ApiError, invalid

SHOWN = 100
PLACE = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", re.DOTALL)
STEP = re.compile(r"\[(?:\d+|\.\.\.)\]|[^.\[\]]+")
BOUNDS = {"le": (le, "at most"), "ge": (ge, "at least"), "lt": (lt, "below"), "gt": (gt, "above")}
CLASSES: dict[type, tuple[type, ...]] = {
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.StrType: (str,),
    inspect.BoolType: (bool,),
    inspect.NoneType: (type(None),),
}
LENGTHS = {"max_length": BOUNDS["le"], "min_length": BOUNDS["ge"]}


def of_validation(error: msgspec.ValidationError, kind: type, raw: Any) -> ApiError:
    """kind: of struct. raw: what was to become one."""
    parts = PLACE.fullmatch(str(error))
    assert parts is not None
    reason, where = str(parts[1]), ""
    value: Any = raw
    types = list(alternatives(inspect.type_info(kind)))
    for step in STEP.findall(parts[2] or ""):
        types = [one for outer in types for one in _inner(outer, step)]
        if step == "[...]":  # one of a mapping's values, and msgspec does not say which
            step = next((key for key, one in value.items() if not _fits(types, one)), "")
            if not step:
                break
        in_list = isinstance(value, list)  # a client's key may look like an index
        where += step if in_list else f".{step[:SHOWN]}"
        value = value[int(step[1:-1]) if in_list else step]
    where = where.removeprefix(".")
    for name, reason in _wrong_keys(types, value):
        where = ".".join(filter(None, (where, name)))
        return invalid(where, f"{where} {reason}")
    wrong = next(_wrong(types, value), None)
    if wrong is not None:
        return invalid(where, f"{where} {wrong}")
    return invalid(where or None, f"{where}: {reason}" if where else reason)


def _inner(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match outer:
        case inspect.StructType(fields=fields):
            types = [field.type for field in fields if field.encode_name == step]
        case inspect.ListType(item_type=item):
            types = [item]
        case inspect.DictType(value_type=value):
            types = [value]
        case _:
            types = []
    for one in types:
        yield from alternatives(one)


def alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    """Each type of a union, without the annotations that describe it."""
    if isinstance(one, inspect.Metadata):
        yield from alternatives(one.type)
    elif isinstance(one, inspect.UnionType):
        for part in one.types:
            yield from alternatives(part)
    else:
        yield one


def _wrong_keys(types: Sequence[inspect.Type], value: Any) -> Iterator[tuple[str, str]]:
    """Missing keys, and unknown ones where the struct refuses them."""
    for one in types:
        if isinstance(one, inspect.StructType) and isinstance(value, Mapping):
            known = {field.encode_name: field.required for field in one.fields}
            if one.forbid_unknown_fields:
                others = f"is not a known field; known are {', '.join(known)}"
                yield from ((name, others) for name in value if name not in known)
            yield from ((name, "is missing") for name, required in known.items() if required and name not in value)


def _wrong(types: Sequence[inspect.Type], value: Any) -> Iterator[str]:
    """What is said of a value that is none of a choice's, and of a number or a length out of bounds."""
    choices = [choice for one in types if isinstance(one, inspect.LiteralType) for choice in one.values]
    if value not in choices and type(value) in map(type, choices):
        allowed = [msgspec.json.encode(choice).decode() for choice in choices]
        allowed += ["an object"] * any(isinstance(one, inspect.StructType) for one in types)
        allowed += [f"a number from {one.ge} to {one.le}" for one in types if isinstance(one, inspect.IntType)]
        yield f"is {repr(value)[:SHOWN]}; it must be {' or '.join(allowed)}"
    for one in types:
        match one, value:
            case ((inspect.IntType() | inspect.FloatType()), int() | float()) if not isinstance(value, bool):
                yield from (f"is {value!r}"[:SHOWN] + f"; it must be {limit}" for limit in _crossed(one, BOUNDS, value))
            case (inspect.StrType(), str()) | (inspect.ListType(), list()) | (inspect.DictType(), dict()):
                size = len(value)
                yield from (f"has length {size}; it must be {limit}" for limit in _crossed(one, LENGTHS, size))


def _fits(types: Sequence[inspect.Type], value: Any) -> bool:
    """Whether a value that is no list and no object is of one of the types."""
    like = [one for one in types if type(value) in CLASSES[type(one)]]
    return bool(like) and next(_wrong(like, value), None) is None


def _crossed(kind: inspect.Type, bounds: Mapping[str, tuple[Any, str]], number: float) -> Iterator[str]:
    for name, (holds, words) in bounds.items():
        limit = getattr(kind, name)
        if limit is not None and not holds(number, limit):
            yield f"{words} {limit}"
