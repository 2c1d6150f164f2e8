"""Leaves, alternatives to draft tokens: tokens for additional rows of the verify pass, chosen from the draft's logits.

A leaf is never judged. It only says whose row the target computes in the same pass, so it may be chosen after the draft
was drawn, and in any way: the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .distribution import Probabilities, Row, Tokens

# Choices with a smaller share are ignored: so there are at most 50 per position, and hardly ever more than ten.
MIN_SHARE = 0.02


@dataclass(frozen=True)
class Leaf:
    """A token in the position of draft token `place`, from 0: it follows the draft tokens before that one."""

    place: int
    token: int


def matching_leaf(leaves: Sequence[Leaf], count: int, token: int) -> int | None:
    """Which of `leaves` is `token`, the target's own after `count` accepted draft tokens; None if none is."""
    return next((index for index, leaf in enumerate(leaves) if (leaf.place, leaf.token) == (count, token)), None)


class Leaves(Protocol):
    """Where a round's leaves come from."""

    def begin(self, count: int) -> None:
        """Begin a round that drafts up to `count` tokens."""
        ...

    def take(self, max_leaves: int) -> list[Leaf]:
        """At most `room` leaves for the draft that the round has proposed."""
        ...


class LeafChoices:
    """The likeliest tokens of the draft's rows apart from those that were drafted; implements `Leaves`."""

    def __init__(self, most: int, never: Collection[int]) -> None:
        """most: leaves per round. never: tokens after which no further token is needed."""
        self._most, self._never = most, frozenset(never)
        self.begin(0)

    def begin(self, count: int) -> None:
        self._rows: list[Row] = []
        self._drafted: list[int] = []  # one for each row
        self._places: list[int] = []

    def add(self, row: Row, place: int, token: int) -> None:
        """Draft token `place`, from 0, was drawn from `row`."""
        self._rows.append(row.copy())  # the next pass overwrites it
        self._drafted.append(token)
        self._places.append(place)

    def take(self, max_leaves: int) -> list[Leaf]:
        """The most valuable tokens, by the draft's probability that it is accepted so far and the token follows."""
        if not self._rows:
            return []
        places, tokens, values = self._ranked()
        order = [i for i in np.argsort(-values, kind="stable").tolist() if tokens[i] not in self._never]
        return [Leaf(int(places[i]), int(tokens[i])) for i in order[: max(0, min(self._most, max_leaves))]]

    def _ranked(self) -> tuple[Tokens, Tokens, Probabilities]:
        """(position, token, value) of tokens that were not drafted, all of the round's rows at once, which takes less
        time than one by one.
        """
        rows, drafted, at = np.stack(self._rows), np.array(self._drafted), np.array(self._places)
        weights = np.exp(rows - rows.max(axis=1, keepdims=True))
        mass, every = weights.sum(axis=1), np.arange(len(rows))
        mine = weights[every, drafted]
        weights[every, drafted] = 0.0
        row, tokens = np.nonzero(weights > MIN_SHARE * weights.sum(axis=1)[:, None])
        values = weights[row, tokens].astype(np.float64)
        order = np.lexsort((-values, row))
        row, tokens, values = row[order], tokens[order], values[order]
        alive = np.cumprod(np.append(1.0, mine / mass))
        return at[row], tokens, alive[row] * values / mass[row]
