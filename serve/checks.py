"""Values that an application passes in code: each is checked when it is given, and refused in one line.

Refused `api_keys` are never shown: keys are in no message and no log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError
from ..runtime.sampling.options import items, real_number, shown, whole_number

LONGEST_TIME = 1e9  # seconds, 30 years: the system's own clocks take no more
HOST = r"(?:\[[0-9a-f:.]+\]|[^\s/:@\[\]?#*,]+)"
HOST_NAME = re.compile(HOST, re.IGNORECASE)
PREFIX = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")  # Prometheus's rule
NAME = re.compile("[A-Za-z0-9._-]{1,64}")
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{HOST}(?::\d+)?", re.IGNORECASE)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts. One alone is refused: each of its letters would count as one of them."""
    advice = f'give a list or a tuple, with its comma: {name}=("...",)'
    if isinstance(value, str | bytes):
        kind = "a single string" if isinstance(value, str) else "of type bytes"
        raise ParameterError(f"{name} is {kind}; {advice}", name)
    found = None if isinstance(value, Mapping) else items(value)
    if found is None:
        raise ParameterError(f"{name} is of type {type(value).__name__}; {advice}", name)
    for one in found:
        if not isinstance(one, str):
            raise ParameterError(f"{name} holds something of type {type(one).__name__}; it must hold texts", name)
        if not one:
            raise ParameterError(f"{name} holds an empty text; give texts of at least one character", name)
    return found


def keys(name: str, value: Any) -> tuple[str, ...]:
    found = texts(name, value)
    if not all(map(is_key, found)):
        raise ParameterError(f"{name} holds one with spaces or characters beyond ASCII; give keys without them", name)
    return found


def is_key(key: str) -> bool:
    """Whether clients can send `key` in a header."""
    return key.isascii() and key.isprintable() and " " not in key


def hosts(name: str, value: Any) -> tuple[str, ...]:
    """Names and addresses, or "*"."""
    found = texts(name, value)
    for host in found:
        if host != "*" and not HOST_NAME.fullmatch(host):
            raise ParameterError(
                f"{name} holds {shown(host)}; it must hold names or addresses without scheme and port, "
                "IPv6 in brackets, or '*' for any",
                name,
            )
    return found


def origins(name: str, value: Any) -> tuple[str, ...]:
    """Origins as browsers write them, in lower case."""
    found = texts(name, value)
    for origin in found:
        if not ORIGIN.fullmatch(origin):
            raise ParameterError(
                f"{name} holds {shown(origin)}; it must hold exact origins, scheme://host or scheme://host:port, "
                "as https://app.example",
                name,
            )
    return tuple(origin.lower() for origin in found)


def count(name: str, value: Any) -> int:
    found = whole_number(name, value)
    if found < 1:
        raise ParameterError(f"{name} is {shown(value)}; it must be 1 or more", name)
    return found


def seconds(name: str, value: Any) -> float:
    found = real_number(name, value)
    if not 0 <= found <= LONGEST_TIME:  # NaN fails as well
        raise ParameterError(f"{name} is {shown(value)}; it must be from 0 to {LONGEST_TIME:.0f} seconds", name)
    return found


def some_seconds(name: str, value: Any) -> float:
    found = seconds(name, value)
    if not found:
        raise ParameterError(f"{name} is 0; it must be above 0 seconds", name)
    return found


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{name} is {shown(value)}; it must be a text of at least one character", name)
    return value


def model(name: str, value: Any) -> str:
    """The name of a model. Each answer holds it, so it must be valid Unicode."""
    if not text(name, value).isprintable():
        raise ParameterError(
            f"{name} is {shown(value)}; it must have printable characters only (--served-model-name)", name
        )
    return str(value)


def models(name: str, value: Any) -> str | tuple[str, ...]:
    """One name, or several."""
    found = None if isinstance(value, str | bytes | Mapping) else items(value)
    if found is None:
        return model(name, value)
    if not found:
        raise ParameterError(f"{name} is empty; give one name or several", name)
    return tuple(dict.fromkeys(model(name, one) for one in found))


def temperature(name: str, value: Any) -> float:
    found = real_number(name, value)
    if not 0 <= found <= 2:
        raise ParameterError(f"{name} is {shown(value)}; it must be from 0 to 2", name)
    return found


def prefix(name: str, value: Any) -> str:
    """The prefix of the names at `/metrics`."""
    if not PREFIX.fullmatch(text(name, value)):
        raise ParameterError(f"{name} is {shown(value)}; it must be ASCII letters, digits and _, no digit first", name)
    return str(value)


def name(name: str, value: Any) -> str:
    """The name of a server, which must be a valid header value."""
    if not NAME.fullmatch(text(name, value)):
        raise ParameterError(f"{name} is {shown(value)}; it must be 1 to 64 of the characters A-Za-z0-9._-", name)
    return str(value)
