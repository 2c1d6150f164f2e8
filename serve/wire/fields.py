"""What becomes of a request's fields: honoured, accepted without effect, refused by name, or ignored.

Honoured are the fields of the request's struct (`requests.py`), also by the names that other servers have for them
(`known_fields.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ApiError, invalid, unsupported
from .known_fields import (
    ANY,
    ASKS_FOR_NOTHING,
    FIELDS,
    NARROWING,
    NOT_KNOWN,
    NOTHING,
    OF_MESSAGES,
    OTHER_NAMES,
)
from .requests import Extension

# `route` is none: as a field of the request, it may be another server's.
MISPLACED = {*Extension.__struct_fields__} - {"route"}
PLACE = re.compile(r"\[\d+\]")
MAX_TOKENS = 2**31 - 1  # reduced to what there is room for


def renamed(raw: Mapping[str, Any], honoured: frozenset[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(the request with this server's names of its fields, the client's names of those that had another one).

    Raises `ApiError` for two names of one thing.
    """
    fields = {name: value for name, value in raw.items() if name in honoured or name not in OTHER_NAMES}
    sent_as: dict[str, str] = {}
    for name, value in raw.items():
        if name in fields or value is None:
            continue
        target, _, inner = OTHER_NAMES[name].partition(".")
        if target not in honoured:
            fields[name] = value
            continue
        if any(_same(value, nothing) for nothing in NOTHING.get(name, ())):
            if target != "max_tokens" or fields.get(target) is not None:
                continue
            value = MAX_TOKENS
        if (name, value) == ("format", "json"):
            inner = "json_object"
            value = True
        value = {inner: value} if inner else value
        if fields.get(target) not in (None, value):
            raise invalid(name, f"{name} is sent beside {sent_as.get(target, target)}; send one of them")
        fields[target] = value
        sent_as |= {OTHER_NAMES[name]: name, target: name}
    return fields, sent_as


def check_fields(raw: Mapping[str, Any], honoured: frozenset[str], strict: bool) -> list[str]:
    """Names of the ignored fields, in order. Raises `ApiError` for refused ones."""
    misplaced = next((name for name in raw if name in MISPLACED and raw[name] is not None), None)
    if misplaced is not None:
        reason = f'{misplaced} belongs in the object specexport: "specexport": {{"{misplaced}": ...}}'
        raise ApiError("unsupported_parameter", reason, misplaced)
    others = ((name, value) for name, value in raw.items() if name not in honoured and value is not None)
    return unknown(others, strict, of_messages=raw.get("messages") is not None)


def unknown(fields: Iterable[tuple[str, Any]], strict: bool, of_messages: bool = False) -> list[str]:
    """Names of those that no server is known to have; `messages[0].x` for one in another object.

    Raises `ApiError` for one that would change an answer, and with `strict` for every unknown one.
    """
    ignored = []
    for name, value in fields:
        known = PLACE.sub("[]", name)
        rule = (OF_MESSAGES.get(known) if of_messages else None) or FIELDS.get(known)
        if rule is None and _narrows(known):
            rule = (ASKS_FOR_NOTHING, NOT_KNOWN)
        if rule is None:
            if strict:
                raise ApiError("unknown_parameter", f"{name[:64]!r} is not a known field", name[:64])
            ignored.append(name)
        elif not any(_same(value, accepted) for accepted in rule[0]):
            raise unsupported(name, rule[1])
    return ignored


def _narrows(name: str) -> bool:
    """Whether an unknown field seems to narrow the answer. A tool's schema of its result, for one, does not."""
    return not name.startswith(("messages[]", "tools[]")) and NARROWING.search(name) is not None


def _same(value: Any, accepted: Any) -> bool:
    """As JSON: 1.0 is 1, and true is not."""
    if accepted is ANY:
        return True
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, accepted))
    return (numbers or type(value) is type(accepted)) and bool(value == accepted)
