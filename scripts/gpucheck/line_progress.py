"""A build's progress as lines of text, and its notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class LineProgress:
    """Implements `Progress`. begin: called with each stage. say: with each note. notes: all of them."""

    def __init__(self, begin: Callable[[str], None], say: Callable[[str], None]) -> None:
        self._begin, self._say = begin, say
        self.notes: list[str] = []

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        self._begin(label)
        yield lambda step: None

    def note(self, message: str) -> None:
        self.notes.append(message)
        self._say(message)
