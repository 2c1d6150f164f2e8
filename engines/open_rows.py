"""Which rows a decoder's states have taken in for good, and which are still open: those may yet be rejected.

A recurrent state cannot be rolled back, so it is committed late. A pass leaves its last rows open, as what the
recurrence reads of them. The next pass says by its position how many of them count, takes these in, and drops the rest.
"""

from __future__ import annotations

from ..errors import EngineError


class OpenRows:
    """window: how many rows may be open. keeps: whether rows of earlier passes stay open as long as there is room.

    A target is rolled back into its last pass at most. A draft is rolled back over all passes of a round, a token each.
    A prompt may turn out to have another end, so its rows stay open as a draft's do, of however short a pass they are.
    start: rows that are certain; end: rows with those that are open.
    """

    def __init__(self, window: int, keeps: bool) -> None:
        self._window, self._keeps = window, keeps
        self.start = self.end = 0

    def resumable(self, rows: int) -> int:
        """`rows`, if a pass can go on behind as many, else 0."""
        return rows if self.start <= rows <= self.end else 0

    def begin(self, position: int, count: int, prompt: bool = False) -> tuple[int, int]:
        """For a pass of `count` rows: how many of the open ones count, and how many of both become certain.

        prompt: whether the pass feeds one.

        Until `finish` nothing is known of the states: a pass that fails may have changed them. Raises `EngineError`.
        """
        if position and self.resumable(position) != position:
            raise EngineError(
                f"a pass cannot continue after {position} rows: the states hold {self.start} to {self.end}; start at 0"
            )
        pending = position - self.start if position else 0
        self.start = self.end = 0
        return pending, self.certain(pending, count, prompt)

    def certain(self, pending: int, count: int, prompt: bool = False) -> int:
        """How many rows become certain in a pass of `count` rows, of these and of the open ones that count."""
        still_open = min(self._window, count + (pending if self._keeps or prompt else 0))
        return pending + count - still_open

    def finish(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def forget(self) -> None:
        self.finish(0, 0)
