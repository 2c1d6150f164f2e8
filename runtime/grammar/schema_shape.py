"""Whether a schema is well-formed: where it holds schemas, and what some of its keywords must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Keywords whose values are schemas by name, and those with a schema or a list of them; the values of others are data.
OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
OF_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"}
    | {"unevaluatedProperties", "propertyNames", "anyOf", "allOf", "oneOf", "not", "if", "then", "else"}
)
LONGEST_SHOWN = 100


def malformed(schema: Any) -> str | None:
    """The error in the first malformed place, None if there is none. No recursion: it may be nested deep."""
    waiting: list[tuple[str, Any]] = [("", schema)]
    while waiting:
        where, one = waiting.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            return _expected(where, one, "a schema")
        for keyword, value in one.items():
            expected = _wrong(keyword, value)
            if expected is not None:
                return _expected(f"{where}.{keyword}", value, expected)
            waiting += below(f"{where}.{keyword}"[:LONGEST_SHOWN], keyword, value)
    return None


def below(where: str, keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(where it is, schema) for all schemas in `value`."""
    if keyword in OF_NAMES and isinstance(value, dict):
        yield from ((f"{where}.{name}", one) for name, one in value.items())
    elif keyword in OF_SCHEMAS:
        several = isinstance(value, list)
        yield from ((f"{where}[{place}]", one) for place, one in enumerate(value)) if several else [(where, value)]


def _wrong(keyword: str, value: Any) -> str | None:
    """What was expected instead of `value`."""
    if keyword in OF_NAMES and not isinstance(value, dict):
        return "an object of schemas"
    if keyword == "required" and not _texts(value):
        return "a list of texts"
    if keyword == "type" and not isinstance(value, str) and not _texts(value):
        return "a text or a list of texts"
    return None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _expected(where: str, value: Any, expected: str) -> str:
    return f"{where.removeprefix('.')[:LONGEST_SHOWN] or 'it'} is of type {type(value).__name__}; expected {expected}"
