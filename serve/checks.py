"""Values that an application passes in code: each is checked when it is given, and refused in one line.

Refused `api_keys` are never shown: keys are in no message and no log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError
from ..runtime.sampling.options import Number, Whole, items, shown

LONGEST_TIME = 1e9  # seconds, 30 years: the system's own clocks take no more
HOST = r"(?:\[[0-9a-f:.]+\]|[^\s/:@\[\]?#*,]+)"
HOST_NAME = re.compile(rf"\*|{HOST}", re.IGNORECASE)
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{HOST}(?::\d+)?", re.IGNORECASE)
PREFIX = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")  # Prometheus's rule
NAME = re.compile("[A-Za-z0-9._-]{1,64}")
count = Whole(least=1).check
seconds = Number(low=0.0, high=LONGEST_TIME, off="seconds").check
some_seconds = Number(low=0.0, high=LONGEST_TIME, above=True, off="seconds").check
temperature = Number(low=0.0, high=2.0, off="0 is greedy").check


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts. One alone is refused: each of its letters would count as one of them."""
    values = None if isinstance(value, str | bytes | Mapping) else items(value)
    if values is None:
        kind = "a single string" if isinstance(value, str) else f"of type {type(value).__name__}"
        raise ParameterError(f'{name} is {kind}; give a list or a tuple, with its comma: {name}=("...",)', name)
    for one in values:
        if not isinstance(one, str):
            raise ParameterError(f"{name} holds something of type {type(one).__name__}; it must hold texts", name)
        if not one:
            raise ParameterError(f"{name} holds an empty text; give texts of at least one character", name)
    return values


def keys(name: str, value: Any) -> tuple[str, ...]:
    values = texts(name, value)
    if not all(map(is_key, values)):
        raise ParameterError(f"{name} holds one with spaces or characters beyond ASCII; give keys without them", name)
    return values


def is_key(key: str) -> bool:
    """Whether clients can send `key` in a header."""
    return key.isascii() and key.isprintable() and " " not in key


def hosts(name: str, value: Any) -> tuple[str, ...]:
    """Names and addresses, or "*"."""
    expected = "names or addresses without scheme and port, IPv6 in brackets, or '*' for any"
    return _matching(name, texts(name, value), HOST_NAME, expected)


def origins(name: str, value: Any) -> tuple[str, ...]:
    """Origins as browsers write them, in lower case."""
    expected = "exact origins, scheme://host or scheme://host:port, as https://app.example"
    return tuple(origin.lower() for origin in _matching(name, texts(name, value), ORIGIN, expected))


def _matching(name: str, values: tuple[str, ...], pattern: re.Pattern[str], expected: str) -> tuple[str, ...]:
    wrong = next((one for one in values if not pattern.fullmatch(one)), None)
    if wrong is not None:
        raise ParameterError(f"{name} holds {shown(wrong)}; it must hold {expected}", name)
    return values


def _text(name: str, value: Any, fits: bool, expected: str) -> str:
    if not fits:
        raise ParameterError(f"{name} is {shown(value)}; it must be {expected}", name)
    return str(value)


def model(name: str, value: Any) -> str:
    """The name of a model. Each answer holds it, so it must be valid Unicode."""
    fits = isinstance(value, str) and bool(value) and value.isprintable()
    return _text(name, value, fits, "a text of printable characters")


def models(name: str, value: Any) -> str | tuple[str, ...]:
    values = None if isinstance(value, str | bytes | Mapping) else items(value)
    if values is None:
        return model(name, value)
    if not values:
        raise ParameterError(f"{name} is empty; give one name or several", name)
    return tuple(dict.fromkeys(model(name, one) for one in values))


def prefix(name: str, value: Any) -> str:
    """The prefix of the names at `/metrics`."""
    fits = isinstance(value, str) and PREFIX.fullmatch(value) is not None
    return _text(name, value, fits, "ASCII letters, digits and _, no digit first")


def name(name: str, value: Any) -> str:
    """The name of a server, which must be a valid header value."""
    fits = isinstance(value, str) and NAME.fullmatch(value) is not None
    return _text(name, value, fits, "1 to 64 of the characters A-Za-z0-9._-")
