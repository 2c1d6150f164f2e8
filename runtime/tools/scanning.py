"""Helpers for parsing text in pieces: where JSON ends, and how much of a text may be the beginning of a marker."""

from __future__ import annotations


class JsonScanner:
    """Reads a value letter by letter. outside: outside any object, list or text of it."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    @property
    def outside(self) -> bool:
        return not self._depth and not self._quoted

    def read(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped, self._quoted = letter == "\\", letter != '"'
        elif letter == '"':
            self._quoted = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1


def overlap(text: str, marker: str) -> int:
    """Number of characters at the end of `text` with which `marker` may begin: what follows decides."""
    sizes = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)
