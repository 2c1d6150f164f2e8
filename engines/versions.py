"""Versions of packages, as tuples of numbers that can be compared."""

from __future__ import annotations

import re


def version_numbers(text: str) -> tuple[int, ...]:
    """`10.3.0` -> (10, 3, 0); at most four numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def dotted(version: tuple[int, ...]) -> str:
    """(10, 3, 0) -> `10.3.0`."""
    return ".".join(map(str, version))
