"""Damage to files, drawn from a seed: lost or changed bytes, and badly edited JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

LARGEST_FLOAT = 1e308
HEAD = 4096  # bytes where much of a protobuf's structure is
JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2,
    2**31,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../../etc/passwd",
    "a\nb\x00",
    "\ud800",
    "é" * 1000,
    [],
    [[]],
    [0, -1, "x"],
    {},
    {"a": 1},
)


def bytes_damaged(data: bytes, chance: random.Random) -> bytes:
    """A damaged copy of `data`, never equal to it."""
    while True:
        found = chance.choice(BYTE_WAYS)(data, chance)
        if found != data:
            return found


def json_damaged(data: bytes, chance: random.Random) -> bytes:
    """The JSON file with one to three changes, never equal to it."""
    there = json.loads(data)
    while True:
        value: Any = copy.deepcopy(there)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            value = _edited(value, chance)
        found = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        if value != there:
            return found


def _place(data: bytes, chance: random.Random) -> int:
    """A random position, half of the time near the beginning."""
    return chance.randrange(min(len(data), HEAD) if chance.random() < 0.5 else len(data))


def _flip(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        found[_place(data, chance)] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: _place(data, chance)]


def _remove(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + data[start + chance.choice((1, 4, 64, 4096)) :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + chance.randbytes(chance.choice((1, 4, 64, 1000))) + data[start:]


def _overwrite(data: bytes, chance: random.Random) -> bytes:
    """Overwrites a part, like a disk block that was never written."""
    start, size = _place(data, chance), chance.choice((1, 8, 512, 4096))
    other = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
    return data[:start] + other[: len(data) - start] + data[start + size :]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + data[max(0, start - chance.choice((1, 16, 512))) :]


def _number(data: bytes, chance: random.Random) -> bytes:
    """Overwrites a part with the largest varint that fits."""
    start, size = _place(data, chance), chance.randint(1, 10)
    return data[:start] + b"\xff" * (size - 1) + b"\x7f" + data[start + size :]


def _replaced(data: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"", b"\n", b"{}", b"[]", b"null", b"\x00" * 64, chance.randbytes(300), b"[" * 100_000))


BYTE_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip,
    _flip,
    _flip,
    _cut,
    _remove,
    _insert,
    _overwrite,
    _repeat,
    _number,
    _replaced,
)


def _edited(value: Any, chance: random.Random) -> Any:
    """`value` with one change, at any depth."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.03:
        return _other(value, chance)
    key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.75:
        value[key] = _edited(value[key], chance)
        return value
    match chance.randrange(6):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[chance.choice(("x", f"{key}_", "", "schema_version"))] = value.pop(key)
        case 1:
            value.insert(key, copy.deepcopy(chance.choice(value)))
        case 2 if isinstance(value, dict):
            other = chance.choice(list(value))
            value[key], value[other] = value[other], value[key]
        case 2:
            chance.shuffle(value)
        case _:
            value[key] = _other(value[key], chance)
    return value


def _other(value: Any, chance: random.Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.6:
        halves = (value // 2,) if abs(value) > LARGEST_FLOAT else (value / 2, float(value))
        return chance.choice((value + 1, value - 1, -value, value * 2, value * 1000, *halves))
    if isinstance(value, str) and value and chance.random() < 0.5:
        place = chance.randrange(len(value))
        return value[:place] + chance.choice(("", "x", "\n", "/", "é")) + value[place + 1 :]
    return copy.deepcopy(chance.choice(JUNK))
