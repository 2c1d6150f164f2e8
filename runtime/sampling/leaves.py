"""Rows beside the draft in one verify pass, which catch the token that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Leaf:
    """A token in the place of draft token `place`, from 0: behind the draft tokens in front of that."""

    place: int
    token: int


class Leaves(Protocol):
    """Where a round's leaves come from."""

    def begin(self, count: int) -> None:
        """A round that drafts up to `count` tokens."""
        ...

    def take(self, room: int) -> list[Leaf]:
        """The leaves beside the draft that the round has proposed, at most `room`."""
        ...


def caught(leaves: Sequence[Leaf], count: int, token: int) -> int | None:
    """Which of `leaves` is `token`, the target's own behind `count` accepted draft tokens; None where none is."""
    return next((index for index, leaf in enumerate(leaves) if (leaf.place, leaf.token) == (count, token)), None)
