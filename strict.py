"""Frozen dataclasses from untrusted JSON: errors name the keys that are unknown, missing or of the wrong type."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from .errors import BundleError

T = TypeVar("T")

# Metadata of a field that older files lack: it then has its default.
OPTIONAL = {"optional": True}


def read_json(path: Path, remedy: str = "build the bundle again") -> Any:
    """The parsed content of a JSON file. Raises `BundleError` if it is missing or is not JSON, or an object has a key
    twice; `remedy` says in the latter messages what to do.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise BundleError(
            f"{path} is missing; a bundle is a folder made by 'specexport build'", code="bundle_not_found"
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # also: not UTF-8, numbers too long, nesting too deep
        raise BundleError(f"{path} cannot be read as JSON: {error}; {remedy}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        found[key] = value
    return found


def parse(kind: type[T], value: Any, where: str) -> T:
    """Build dataclass `kind` from parsed JSON; `where` names the place, a file or its path.

    Raises `BundleError` for a key that is unknown or missing, and for a value of the wrong type or one that the
    dataclass refuses.
    """
    try:
        return typing.cast(T, _convert(kind, value, where))
    except BundleError as error:
        error.field = (error.field or where).removeprefix(where[: where.rfind("/") + 1])
        raise


def without_defaults(value: Any) -> Any:
    """What `parse` reads as `value`, without `OPTIONAL` fields that have their default: earlier versions lack some."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if not _is_default(field, getattr(value, field.name))]
        return {field.name: without_defaults(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {key: without_defaults(item) for key, item in value.items()}
    return [without_defaults(item) for item in value] if isinstance(value, tuple) else value


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    made = field.default_factory
    return bool(field.metadata) and value == (field.default if made is dataclasses.MISSING else made())


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), value, where)
    if origin in (types.UnionType, typing.Union):  # typing.Union is the origin of `Literal[...] | None`
        return None if value is None else _convert(arguments[0], value, where)
    if origin is tuple:
        _expect(isinstance(value, list), "a list", value, where)
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is typing.Literal:
        _expect(value in arguments, "one of " + ", ".join(map(repr, arguments)), value, where)
        return value
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    _expect(type(value) is kind, f"a value of type {kind.__name__}", value, where)
    return value


def _dataclass(kind: type, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), "an object", value, where)
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(value) - set(names))
    missing = [field.name for field in dataclasses.fields(kind) if field.name not in value and not field.metadata]
    if unknown:
        raise BundleError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(names)}", f"{where}.{unknown[0]}")
    if missing:
        raise BundleError(f"{where}: the key {missing[0]!r} is missing", f"{where}.{missing[0]}")
    try:
        return kind(**{name: _convert(hints[name], value[name], f"{where}.{name}") for name in names if name in value})
    except ValueError as error:
        raise BundleError(f"{where}: {error}", where) from None


def _expect(condition: bool, expected: str, value: Any, where: str) -> None:
    if not condition:
        raise BundleError(f"{where}: found {json.dumps(value)[:60]}, expected {expected}", where)
