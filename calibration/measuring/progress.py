"""How a measurement reports its progress."""

from __future__ import annotations

from collections.abc import Callable

# (steps finished, steps in all)
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """The `Progress` that shows nothing."""
