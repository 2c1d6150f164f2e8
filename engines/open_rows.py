"""Which rows a decoder's states have committed, and which are still open, because they may yet be rejected.

A recurrent state cannot be rolled back, so it is committed late. A pass leaves its last rows open: it keeps the
recurrence's inputs of these rows. The position of the next pass says how many of them count; that pass commits those
and drops the rest.
"""

from __future__ import annotations

from ..errors import EngineError


class OpenRows:
    """window: how many rows may be open. keeps: whether rows of earlier passes stay open as long as there is room.

    A target is rolled back at most into its last pass. A draft is rolled back over all passes of a round, one token
    each. A later prompt may end differently, so a prompt's rows stay open like a draft's, however short its passes are.
    start: how many rows are certain (committed). end: how many with the open ones.
    """

    def __init__(self, window: int, keeps: bool) -> None:
        self._window, self._keeps = window, keeps
        self.start = self.end = 0

    def resumable(self, rows: int) -> int:
        """`rows` if a pass can continue from there, else 0."""
        return rows if self.start <= rows <= self.end else 0

    def begin(self, position: int, count: int, prompt: bool = False) -> tuple[int, int]:
        """Begin a pass of `count` rows at `position`; returns (pending, certain).

        pending: how many of the open rows count. certain: how many of these and of the new rows the pass commits.
        prompt: whether the pass feeds a prompt. Until `finish` the states count as unknown, since a pass that fails may
        have changed them. Raises `EngineError` if no pass can continue from `position`.
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
        """The pass has run: rows up to `start` are certain, rows up to `end` are open."""
        self.start, self.end = start, end

    def forget(self) -> None:
        """The states are unknown: the next pass must start at 0."""
        self.finish(0, 0)
