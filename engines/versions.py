"""Versions of packages, as numbers that compare."""

from __future__ import annotations

import re


def version_numbers(text: str) -> tuple[int, ...]:
    """`10.3.0` -> (10, 3, 0), four numbers at most."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
