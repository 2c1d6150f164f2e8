"""A request's body to a checked struct."""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from .errors import as_sent, invalid
from .fields import check_fields, renamed, unknown
from .invalid_structs import of_validation

T = TypeVar("T")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
LARGEST_EXACT = 2**53  # up to here each whole number is a float
# Keywords of JSON schemas whose values llguidance takes as integers only.
COUNTS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """ignored: names of unknown fields, `messages[0].x` for a nested one. sent_as: the client's names of fields that
    have another one here, by that.
    """

    request: T
    ignored: list[str]
    sent_as: Mapping[str, str]


def parse(kind: type[T], body: bytes, strict: bool) -> Parsed[T]:
    """Raises `ApiError` 400, which names the field."""
    raw = _json(body)
    if not isinstance(raw, dict):
        raise invalid(None, f"the body is a {type(raw).__name__}; expected an object")
    honoured = frozenset(_names(kind))
    raw, sent_as = renamed(raw, honoured)
    ignored = check_fields(raw, honoured, strict)
    with as_sent(sent_as):
        request = _converted(raw, kind)
    for name in _names(request):
        ignored += unknown(_unknown(getattr(request, name), raw.get(name), name), strict)
    return Parsed(request, ignored, sent_as)


def _converted(raw: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        pass  # perhaps for an integer that is written as 3.0
    try:
        return msgspec.convert(_with_integers(raw), kind)
    except msgspec.ValidationError as error:
        raise of_validation(error, kind, raw) from None


def _with_integers(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` with 3.0 as 3 in its fields and in those of `specexport`, where integers stand.

    In other objects, such as a call's arguments, all stays as the client wrote it: the chat template shows it.
    """
    fields = {name: _whole(value) for name, value in raw.items()}
    if isinstance(own := raw.get("specexport"), dict):
        fields["specexport"] = {name: _whole(value) for name, value in own.items()}
    return fields


def _whole(value: Any, levels: int = 2) -> Any:
    """levels: of lists, as in several prompts of token ids."""
    if isinstance(value, list) and levels:
        return [_whole(one, levels - 1) for one in value]
    return _integer(value) if isinstance(value, float) else value


def _integer(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) <= LARGEST_EXACT else number


def _json(body: bytes) -> Any:
    """Strict JSON in UTF-8: without NaN, infinities, lone surrogates and repeated keys. A byte order mark is skipped.

    By the standard library, since msgspec's decoder says nothing of repeated keys.
    """
    try:
        raw = DECODER.decode(body.removeprefix(BOM_UTF8).decode())
        if SURROGATE.search(body):
            json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise invalid(None, f"the body has a lone surrogate, {half}; send whole characters", "invalid_json") from None
    except (ValueError, RecursionError) as error:  # of Unicode too
        raise invalid(None, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from None
    return raw


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:64]} is too large")
    return number


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name in fields if times[name] > 1)
        raise ValueError(f"the key {twice[:64]!r} appears twice")
    for name in COUNTS.intersection(fields):
        if isinstance(fields[name], float):
            fields[name] = _integer(fields[name])
    return fields


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


DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_constant)
