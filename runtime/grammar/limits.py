"""Limits of a grammar, checked before a compiler sees it, since some compile for minutes or overflow the stack.

Measured with llguidance 1.9.1: 3000 nested rules or references overflow a stack of 8 MB; an `allOf` of 12 patterns
compiles for 1.3 s and each further pair takes 25 times as long; a `multipleOf` of 100 000 takes a second.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from ...errors import GrammarError

LONGEST = 32 * 1024  # characters of a schema without its blanks, of a regex, of all choices together
LONGEST_LARK = 8 * 1024
DEEPEST = 64
MAX_REFS = 500
MAX_JOINED = 8  # schemas of `allOf` after the first, over the whole schema
LARGEST_MULTIPLE = 10_000  # least common multiple of every `multipleOf`, without its powers of ten


def check_length(name: str, text: str, longest: int = LONGEST) -> None:
    if len(text) > longest:
        told = f"it has {len(text)} characters, at most {longest} are allowed; shorten it"
        raise GrammarError(told, kind=name)


def check_schema(schema: Any) -> None:
    """Raises `GrammarError` for a schema that is nested too deep, or joins or refers too often."""
    refs, joined, multiple = 0, 0, 1
    level: list[Any] = [schema]
    depth = 0
    while level:
        if depth > DEEPEST:
            raise too_deep()
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                refs += "$ref" in value or "$dynamicRef" in value
                every = value.get("allOf")
                joined += max(0, len(every) - 1) if isinstance(every, list) else 0
                multiple = math.lcm(multiple, _significant(value.get("multipleOf")))
                below += value.values()
            else:
                below += value
        level = [value for value in below if isinstance(value, dict | list)]
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
