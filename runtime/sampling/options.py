"""Kinds of options: how each is checked, and what the command line needs to offer them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import Any, TypeVar

from ...errors import ParameterError
from ..grammar.grammar import Grammar

T = TypeVar("T")
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
        iterator = iter(value)
    except TypeError:
        return None
    return tuple(iterator)


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


def instance(name: str, value: T, *kinds: type) -> T:
    """`value`, of one of `kinds`. Raises `ParameterError` as `whole_number` does."""
    if not isinstance(value, kinds):
        raise _refused(name, value, f"of type {' or '.join(kind.__name__ for kind in kinds)}")
    return value


@dataclass(frozen=True, kw_only=True)
class Option(ABC):
    """help: one sentence. flag: its name on the command line, by default the field's; "" keeps it off. optional: None
    is allowed.
    """

    help: str = ""
    flag: str | None = None
    optional: bool = False

    def check(self, name: str, value: Any) -> Any:
        """`value` as it is stored. Raises `ParameterError` with the name, the value and what is allowed."""
        return None if value is None and self.optional else self._checked(name, value)

    @abstractmethod
    def _checked(self, name: str, value: Any) -> Any: ...


def option(kind: Option, default: Any = None) -> Any:
    """A dataclass field that is an option. default: of the field, or what makes it."""
    if callable(default):
        return field(default_factory=default, hash=False, metadata={"option": kind})
    return field(default=default, metadata={"option": kind})


def _refused(name: str, value: object, expected: str) -> ParameterError:
    return ParameterError(f"{name} is {shown(value)}; it must be {expected}", name)


@dataclass(frozen=True, kw_only=True)
class Number(Option):
    """From low to high; low itself is excluded with `above`. off: what the neutral value does, or the unit."""

    low: float
    high: float
    above: bool = False
    off: str

    def _checked(self, name: str, value: Any) -> float:
        number = real_number(name, value)
        if not ((self.low < number if self.above else self.low <= number) and number <= self.high):  # NaN fails as well
            allowed = f"above {self.low:g} and at most" if self.above else f"from {self.low:g} to"
            raise ParameterError(f"{name} is {value}; it must be {allowed} {self.high:g} ({self.off})", name)
        return number


@dataclass(frozen=True, kw_only=True)
class Whole(Option):
    """least: None if other options decide it."""

    least: int | None = 0

    def _checked(self, name: str, value: Any) -> int:
        number = whole_number(name, value)
        if self.least is not None and number < self.least:
            raise ParameterError(f"{name} is {value}; it must be {self.least} or more", name)
        return number


@dataclass(frozen=True, kw_only=True)
class Flag(Option):
    def _checked(self, name: str, value: Any) -> bool:
        try:
            known = value in (0, 1)
        except (TypeError, ValueError, RuntimeError):  # arrays are neither equal to a number nor not
            known = False
        if not known:
            raise _refused(name, value, "True or False")
        return bool(value)


@dataclass(frozen=True, kw_only=True)
class Choice(Option):
    names: tuple[str, ...]

    def _checked(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise _refused(name, value, " or ".join(map(repr, self.names)))
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Option):
    """expected: for the error."""

    optional: bool = True
    expected: str = "a text"

    def _checked(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _refused(name, value, self.expected)
        return value


@dataclass(frozen=True, kw_only=True)
class Texts(Option):
    """One text or several, of at least one character each."""

    def _checked(self, name: str, value: Any) -> tuple[str, ...]:
        # An iterator yields its items only once.
        texts = (value,) if isinstance(value, str) else items(value)
        if texts is None or not all(isinstance(text, str) for text in texts):
            raise _refused(name, value, "a text or a list of texts")
        if not all(texts):
            raise ParameterError(f"a {name} string is empty; give strings of at least one character", name)
        return texts


@dataclass(frozen=True, kw_only=True)
class TokenIds(Option):
    """Ids of any collection. single: may be one id. or_text: may be a text."""

    single: bool = False
    or_text: bool = False

    def _checked(self, name: str, value: Any) -> str | tuple[int, ...]:
        if self.or_text and isinstance(value, str):
            return value
        tokens = None if self.or_text and isinstance(value, bytes | Mapping) else items(value)
        if tokens is None and self.single and hasattr(value, "__index__"):
            tokens = (value,)
        if tokens is None:
            raise _refused(name, value, "a text or a list of token ids" if self.or_text else "a list of token ids")
        return tuple(whole_number(f"a token of {name}", token, name) for token in tokens)


@dataclass(frozen=True, kw_only=True)
class OutputGrammar(Option):
    def _checked(self, name: str, value: Any) -> Grammar:
        if not isinstance(value, Grammar):
            raise _refused(name, value, "a Grammar, as Grammar.json_schema makes one")
        return value


@dataclass(frozen=True, kw_only=True)
class Biases(Option):
    def _checked(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise ParameterError(f"{name} is {shown(value)}; it must map token ids to numbers", name)
        biases: dict[int, float] = {}
        for token, bias in value.items():
            place = whole_number(f"a token of {name}", token, name)
            biases[place] = real_number(f"{name} of token {token}", bias, name)
            if not abs(biases[place]) <= BIAS_LIMIT:
                raise ParameterError(
                    f"{name} of token {token} is {bias}; it must be from -{BIAS_LIMIT:g} to {BIAS_LIMIT:g}", name
                )
        return biases
