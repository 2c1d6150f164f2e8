"""How a measurement reports its progress."""

from __future__ import annotations

from collections.abc import Callable

# (steps finished, total steps)
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """The `Progress` that shows nothing."""
