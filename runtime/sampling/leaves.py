"""Leaves: additional rows of one verify pass, for tokens that may follow instead of a draft token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Leaf:
    """A token in the position of draft token `place`, from 0: it follows the draft tokens before that one."""

    place: int
    token: int


class Leaves(Protocol):
    """Where a round's leaves come from."""

    def begin(self, count: int) -> None:
        """Begin a round that drafts up to `count` tokens."""
        ...

    def take(self, rows: int, room: int) -> list[Leaf]:
        """At most `room` leaves for the draft that the round has proposed. rows: those of the pass without leaves."""
        ...


def caught(leaves: Sequence[Leaf], count: int, token: int) -> int | None:
    """Which of `leaves` is `token`, the target's own after `count` accepted draft tokens; None if none is."""
    return next((index for index, leaf in enumerate(leaves) if (leaf.place, leaf.token) == (count, token)), None)
