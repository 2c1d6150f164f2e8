"""Limits of a grammar and the shape of a schema, checked before a compiler sees it: some compile for minutes or
overflow the stack.

Measured with llguidance 1.9.1: 3000 nested rules or references overflow a stack of 8 MB; an `allOf` of 12 patterns
compiles for 1.3 s and each further pair takes 25 times as long; a `multipleOf` of 100 000 takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from ...errors import GrammarError

LONGEST = 32 * 1024  # characters of a schema without its blanks, of a regex, of all choices together
LONGEST_LARK = 8 * 1024
DEEPEST = 64
MAX_REFS = 500
MAX_JOINED = 8  # schemas of `allOf` after the first, over the whole schema
LARGEST_MULTIPLE = 10_000  # least common multiple of every `multipleOf`, without its powers of ten
# Keywords whose values are schemas by name, and those with a schema or a list of them; the values of others are data.
OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
OF_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"}
    | {"unevaluatedProperties", "propertyNames", "anyOf", "allOf", "oneOf", "not", "if", "then", "else"}
)
SHOWN = 100


def check_length(name: str, text: str, longest: int = LONGEST) -> None:
    if len(text) > longest:
        raise GrammarError(f"it has {len(text)} characters, at most {longest} are allowed; shorten it", kind=name)


def check_schema(schema: Any) -> None:
    """Raises `GrammarError` for a schema that is nested too deep, or joins or refers too often."""
    refs, joined, multiple = 0, 0, 1
    level: list[Any] = [schema]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise too_deep()
        nested: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                refs += "$ref" in value or "$dynamicRef" in value
                every = value.get("allOf")
                joined += max(0, len(every) - 1) if isinstance(every, list) else 0
                multiple = math.lcm(multiple, _significant(value.get("multipleOf")))
                nested += value.values()
            else:
                nested += value
        level = [value for value in nested if isinstance(value, dict | list)]
        depth += 1
        if refs > MAX_REFS:
            raise _too_many(f"has more than {MAX_REFS} references")
        if joined > MAX_JOINED:
            raise _too_many(f"has more than {MAX_JOINED} further schemas in its allOf lists")
        if multiple > LARGEST_MULTIPLE:
            raise _too_many(f"has multipleOf with a common multiple above {LARGEST_MULTIPLE}")


def too_deep() -> GrammarError:
    return _too_many(f"is nested more than {DEEPEST} levels deep")


def _significant(value: Any) -> int:
    """The digits of a number as an integer, 1 for what is not a number: 25 for 0.25 and for 250."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits[:20]))) or 1


def _too_many(what: str) -> GrammarError:
    return GrammarError(f"invalid schema: it {what}; simplify it", code="schema_too_complex")


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
            waiting += below(f"{where}.{keyword}"[:SHOWN], keyword, value)
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
    return f"{where.removeprefix('.')[:SHOWN] or 'it'} is of type {type(value).__name__}; expected {expected}"
