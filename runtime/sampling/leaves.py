"""Leaves: additional rows of one verify pass, for tokens that may follow instead of a draft token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """A token in the position of draft token `place`, from 0: it follows the draft tokens before that one."""

    place: int
    token: int


def caught(leaves: Sequence[Leaf], count: int, token: int) -> int | None:
    """Which of `leaves` is `token`, the target's own after `count` accepted draft tokens; None if none is."""
    return next((index for index, leaf in enumerate(leaves) if (leaf.place, leaf.token) == (count, token)), None)
