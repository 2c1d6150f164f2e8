"""A double of a decoder whose layers keep no states."""

from __future__ import annotations

from specexport.engines.base import SavedStates


class RollsBack:
    """A decoder with keys and values alone, which goes on behind any of its rows."""

    has_states = False

    def resumable(self, rows: int) -> int:
        return rows

    def read_recurrent_states(self, end: int) -> SavedStates:
        raise NotImplementedError

    def write_recurrent_states(self, saved: SavedStates) -> None:
        raise NotImplementedError
