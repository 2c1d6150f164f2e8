"""Kinds of options: how each is checked, and what the command line needs to offer them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any

from ...errors import ParameterError
from ..grammar.grammar import Grammar

BIAS_LIMIT = 100.0
LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """`value` for a one-line message; an array's own representation may have several lines."""
    text = repr(value)
    text = text if text.isprintable() else " ".join(text.split())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def items(value: object) -> tuple[Any, ...] | None:
    """The items of `value`, None if it cannot have any: an array without dimensions fails only when iterated."""
    if not isinstance(value, Iterable):
        return None
    try:
        found = iter(value)
    except TypeError:
        return None
    return tuple(found)


def whole_number(name: str, value: object, field: str | None = None) -> int:
    """`value` as an int, numpy's included. Raises `ParameterError` naming it for anything else.

    field: the parameter at fault, if `name` is only a part of it.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ParameterError(f"{name} is {shown(value)}; it must be a whole number", field or name) from None


def real_number(name: str, value: object, field: str | None = None) -> float:
    """`value` as a float, numpy's included. Raises `ParameterError` as `whole_number` does."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} is {shown(value)}; it must be a number", field or name)
    try:
        return float(value)
    except OverflowError:  # an int larger than any float, and so out of range
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Option(ABC):
    """help: one sentence. flag: its name on the command line, by default the field's; "" keeps it off."""

    help: str = ""
    flag: str | None = None

    @abstractmethod
    def check(self, name: str, value: Any) -> Any:
        """`value` as it is stored. Raises `ParameterError` with the name, what was given and what is allowed."""


def option(kind: Option) -> dict[str, Option]:
    """The metadata of a dataclass field that is an option."""
    return {"option": kind}


@dataclass(frozen=True, kw_only=True)
class Number(Option):
    """From low to high; low itself is excluded with `above`. off: what the neutral value does. optional: may be
    None.
    """

    low: float
    high: float
    above: bool = False
    off: str
    optional: bool = False

    def check(self, name: str, value: Any) -> float | None:
        if value is None and self.optional:
            return None
        number = real_number(name, value)
        if not ((self.low < number if self.above else self.low <= number) and number <= self.high):  # NaN fails as well
            allowed = f"above {self.low:g} and at most" if self.above else f"from {self.low:g} to"
            raise ParameterError(f"{name} is {value}; it must be {allowed} {self.high:g} ({self.off})", name)
        return number


@dataclass(frozen=True, kw_only=True)
class Whole(Option):
    """optional: may be None."""

    least: int = 0
    optional: bool = False

    def check(self, name: str, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        number = whole_number(name, value)
        if number < self.least:
            raise ParameterError(f"{name} is {value}; it must be {self.least} or more", name)
        return number


@dataclass(frozen=True, kw_only=True)
class Flag(Option):
    def check(self, name: str, value: Any) -> bool:
        try:
            known = value in (0, 1)
        except (TypeError, ValueError, RuntimeError):  # arrays are neither equal to a number nor not
            known = False
        if not known:
            raise ParameterError(f"{name} is {shown(value)}; it must be True or False", name)
        return bool(value)


@dataclass(frozen=True, kw_only=True)
class Choice(Option):
    names: tuple[str, ...]

    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise ParameterError(f"{name} is {shown(value)}; it must be {' or '.join(map(repr, self.names))}", name)
        return value


@dataclass(frozen=True, kw_only=True)
class Name(Option):
    """A name that the bundle knows, or None."""

    def check(self, name: str, value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise ParameterError(f"{name} is {shown(value)}; it must be the name of a {name}", name)
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Option):
    """A text, or None."""

    def check(self, name: str, value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise ParameterError(f"{name} is {shown(value)}; it must be a text", name)
        return value


@dataclass(frozen=True, kw_only=True)
class Texts(Option):
    """One text or several, of at least one character each; or None."""

    def check(self, name: str, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        # An iterator yields its items only once.
        texts = (value,) if isinstance(value, str) else items(value)
        if texts is None or not all(isinstance(text, str) for text in texts):
            raise ParameterError(f"{name} is {shown(value)}; it must be a text or a list of texts", name)
        if not all(texts):
            raise ParameterError(f"a {name} string is empty; give strings of at least one character", name)
        return texts


@dataclass(frozen=True, kw_only=True)
class TokenIds(Option):
    """Ids of any collection. optional: may be None. single: may be one id."""

    optional: bool = False
    single: bool = False

    def check(self, name: str, value: Any) -> tuple[int, ...] | None:
        if value is None and self.optional:
            return None
        found = items(value)
        if found is None and self.single and hasattr(value, "__index__"):
            found = (value,)
        if found is None:
            raise ParameterError(f"{name} is {shown(value)}; it must be a list of token ids", name)
        return tuple(whole_number(f"a token of {name}", token, name) for token in found)


@dataclass(frozen=True, kw_only=True)
class TextOrIds(Option):
    """A text, token ids of any collection, or None."""

    def check(self, name: str, value: Any) -> str | tuple[int, ...] | None:
        if value is None or isinstance(value, str):
            return value
        found = None if isinstance(value, bytes | Mapping) else items(value)
        if found is None:
            raise ParameterError(f"{name} is {shown(value)}; it must be a text or a list of token ids", name)
        return tuple(whole_number(f"a token of {name}", token, name) for token in found)


@dataclass(frozen=True, kw_only=True)
class Bound(Option):
    """A grammar, or None for free text."""

    def check(self, name: str, value: Any) -> Grammar | None:
        if value is not None and not isinstance(value, Grammar):
            raise ParameterError(
                f"{name} is {shown(value)}; it must be a Grammar, as Grammar.json_schema makes one", name
            )
        return value


@dataclass(frozen=True, kw_only=True)
class Biases(Option):
    def check(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise ParameterError(f"{name} is {shown(value)}; it must map token ids to numbers", name)
        found: dict[int, float] = {}
        for token, bias in value.items():
            place = whole_number(f"a token of {name}", token, name)
            found[place] = real_number(f"{name} of token {token}", bias, name)
            if not abs(found[place]) <= BIAS_LIMIT:
                raise ParameterError(
                    f"{name} of token {token} is {bias}; it must be from -{BIAS_LIMIT:g} to {BIAS_LIMIT:g}", name
                )
        return found
