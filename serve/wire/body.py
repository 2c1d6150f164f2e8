"""A request's body to a checked struct."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from .errors import ApiError, invalid, named_as_given
from .fields import check_fields, renamed, unknown
from .invalid_structs import of_validation
from .requests import Extension
from .whole_numbers import whole_numbers

T = TypeVar("T")


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """ignored: names of unknown fields, `messages[0].x` for a nested one. given: the client's names of fields that have
    another one here, by that.
    """

    request: T
    ignored: list[str]
    given: Mapping[str, str]


def parse(kind: type[T], body: bytes, strict: bool) -> Parsed[T]:
    """Raises `ApiError` 400, which names the field."""
    raw = _json(body)
    if not isinstance(raw, dict):
        raise invalid(None, f"the body is a {type(raw).__name__}; expected an object")
    honoured = frozenset(_names(kind))
    raw, given = renamed(raw, honoured)
    ignored = check_fields(raw, honoured, strict)
    if "specexport" in honoured:
        _check_own(raw.get("specexport"))
    try:
        request = _converted(raw, kind)
    except ApiError as error:
        raise named_as_given(error, given) from None
    for name in _names(request):
        ignored += unknown(_unknown(getattr(request, name), raw.get(name), name), strict)
    return Parsed(request, ignored, given)


def _converted(raw: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:  # perhaps of a whole number that is written as 3.0
        raw = whole_numbers(raw, kind)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise of_validation(error, kind, raw) from None


def _check_own(own: Any) -> None:
    """Raises `ApiError` for an unknown field of `specexport`: no other client has that object, so it is a mistake."""
    known = _names(Extension)
    unknown = next((name for name in own if name not in known), None) if isinstance(own, dict) else None
    if unknown is not None:
        where = f"specexport.{unknown[:64]}"
        told = f"{where!r} is not a known field; specexport has {', '.join(known)}"
        raise ApiError(400, "unknown_parameter", told, where)


def _json(body: bytes) -> Any:
    """Strict JSON: without NaN, lone surrogates and repeated keys. A byte order mark before it is skipped."""
    body = body.removeprefix(BOM_UTF8)
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
        raise ValueError(f"the key {twice[:64]!r} appears twice")
    return found


def _unknown(made: Any, raw: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of fields of `raw` that the structs in `made` do not have. Clients send back an answer's nulls and
    empty lists.
    """
    if isinstance(made, list) and isinstance(raw, list):
        for place, (one, of) in enumerate(zip(made, raw, strict=True)):
            if isinstance(one, msgspec.Struct):  # all that a list holds by the thousand is token ids
                yield from _unknown(one, of, f"{where}[{place}]")
    elif isinstance(made, msgspec.Struct) and isinstance(raw, Mapping):
        known = _names(made)
        for name, value in raw.items():
            if name not in known and value not in (None, []):
                yield f"{where}.{name}", value
        for name in known:
            yield from _unknown(getattr(made, name), raw.get(name), f"{where}.{name}")


def _names(struct: Any) -> tuple[str, ...]:
    return struct.__struct_fields__  # type: ignore[no-any-return]  # `msgspec.structs.fields` reads all annotations
