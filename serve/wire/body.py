"""A request's body to a checked struct."""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from .allowed import parts
from .errors import ApiError, invalid, named_as_given
from .fields import check_fields, renamed, unknown
from .invalid_structs import of_validation
from .requests import Extension

T = TypeVar("T")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_type = cache(inspect.type_info)


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
    """Strict JSON in UTF-8: without NaN, infinities, lone surrogates and repeated keys. A byte order mark is skipped.

    By the standard library, since msgspec's decoder says nothing of repeated keys.
    """
    try:
        raw = DECODER.decode(body.removeprefix(BOM_UTF8).decode())
        if SURROGATE.search(body):
            json.dumps(raw, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # of Unicode too
        raise invalid(None, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    return raw


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise ValueError(f"the number {number[:64]} is too large")
    return found


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


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


def whole_numbers(raw: Any, kind: type) -> Any:
    """`raw` with whole floats as integers, wherever a struct of that kind has an integer.

    Values of any type, such as a schema's, stay as they are.
    """
    return _whole(raw, (_type(kind),))


def _whole(raw: Any, kinds: Sequence[inspect.Type]) -> Any:
    """kinds: what it may be, one of a union."""
    found = [part for kind in kinds for part in parts(kind)]
    if isinstance(raw, float):
        exact = any(isinstance(part, inspect.FloatType | inspect.AnyType) for part in found)
        wanted = any(isinstance(part, inspect.IntType) for part in found)
        return int(raw) if wanted and not exact and raw.is_integer() else raw
    if isinstance(raw, list):
        items = [part.item_type for part in found if isinstance(part, inspect.ListType)]
        return [_whole(one, items) for one in raw] if items else raw
    if isinstance(raw, dict):
        fields = {
            field.encode_name: field.type
            for part in found
            if isinstance(part, inspect.StructType)
            for field in part.fields
        }
        return {name: _whole(value, (fields[name],)) if name in fields else value for name, value in raw.items()}
    return raw


DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_constant)
