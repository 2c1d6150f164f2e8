"""A request's body to a checked struct."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from .errors import ApiError, invalid, of_validation
from .fields import check_fields
from .requests import Message

T = TypeVar("T")
KNOWN_IN_MESSAGE = frozenset(field.name for field in msgspec.structs.fields(Message))


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """ignored: names of fields that were not known."""

    request: T
    ignored: list[str]


def parse(kind: type[T], body: bytes, strict: bool) -> Parsed[T]:
    """Raises `ApiError` 400, which names the field."""
    raw = _json(body)
    if not isinstance(raw, dict):
        raise invalid(None, f"the body is a {type(raw).__name__}; expected an object")
    honoured = frozenset(field.name for field in msgspec.structs.fields(kind))  # type: ignore[arg-type]
    ignored = check_fields(raw, honoured, strict)
    for place, message in enumerate(messages if isinstance(messages := raw.get("messages"), list) else []):
        ignored += _unknown(message, f"messages[{place}]", strict)
    try:
        request = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise of_validation(error) from None
    return Parsed(request, ignored)


def _json(body: bytes) -> Any:
    """JSON without what JSON has not: NaN, lone surrogates; and without keys that come twice."""
    try:
        raw = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors too
        raise invalid(None, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    return raw


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name in found if times[name] > 1)
        raise ValueError(f"the key {twice[:64]!r} comes twice")
    return found


def _unknown(message: Any, where: str, strict: bool) -> list[str]:
    if not isinstance(message, Mapping):
        return []
    names = [f"{where}.{name}" for name in message if name not in KNOWN_IN_MESSAGE]
    if names and strict:
        raise ApiError(400, "unknown_parameter", f"{names[0][:64]!r} is no known field", names[0][:64])
    return names
