"""A build's progress as lines, and what it noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Told:
    """Implements `Progress`: a line for each stage. notes: what the build had to say besides."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.notes: list[str] = []

    @contextmanager
    def stage(self, label: str, steps: int) -> Iterator[Callable[[str], None]]:
        self._tell(f"  {label}")
        yield lambda step: None

    def note(self, message: str) -> None:
        self.notes.append(message)
        self._tell(f"  {message}")
