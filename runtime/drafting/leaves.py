"""Leaves, alternatives to draft tokens: tokens for additional rows of the verify pass, from logits that the draft has
given.

A leaf is never judged. It only says whose row the target computes in the same pass, so it may be chosen after the draft
was drawn, and in any way: the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from ..sampling.distribution import Probabilities, Row, Tokens
from ..sampling.leaves import Leaf
from ..sampling.rules import Proposer

# Choices with a smaller share are ignored: so there are at most 50 per position, and hardly ever more than ten.
MIN_SHARE = 0.02


class Leaves(Protocol):
    """Where a round's leaves come from."""

    def begin(self, count: int) -> None:
        """Begin a round that drafts up to `count` tokens."""
        ...

    def take(self, rows: int, room: int) -> list[Leaf]:
        """At most `room` leaves for the draft that the round has proposed. rows: those of the pass without leaves."""
        ...


class LeafChoices:
    """A `Proposer` that also records, for each row, the likeliest tokens apart from the one that was drafted from it;
    implements `Leaves`.
    """

    def __init__(self, rule: Proposer, most: int, never: Collection[int], vocab_size: int) -> None:
        """most: leaves per round. never: tokens after which no further token is needed. vocab_size: the target's; a
        draft may know more ids.
        """
        self._rule, self._most, self._never, self._vocab_size = rule, most, frozenset(never), vocab_size
        self.begin(0)

    def begin(self, count: int) -> None:
        self._rows: list[Row] = []
        self._drafted: list[int] = []  # one for each row
        self._places: list[int] = []
        self._place = 0

    def legal(self, tokens: Sequence[int]) -> int:
        return self._rule.legal(tokens)

    def propose(self, draft_logits: Row) -> int | None:
        token = self._rule.propose(draft_logits)
        if token is not None:
            self._rows.append(draft_logits[: self._vocab_size].copy())  # the next pass overwrites it
            self._drafted.append(token)
            self._places.append(self._place)
        self._place += token is not None
        return token

    def certain(self, draft_token: int) -> None:
        self._rule.certain(draft_token)
        self._place += 1

    def take(self, rows: int, room: int) -> list[Leaf]:
        """The most valuable tokens, by the draft's probability that it is accepted so far and the token follows."""
        if not self._rows:
            return []
        places, tokens, values = self._find()
        order = [i for i in np.argsort(-values, kind="stable").tolist() if tokens[i] not in self._never]
        return [Leaf(int(places[i]), int(tokens[i])) for i in order[: max(0, min(self._most, room))]]

    def _find(self) -> tuple[Tokens, Tokens, Probabilities]:
        """(position, token, value) of tokens that were not drafted, all of the round's rows at once, which takes less
        time than one by one.
        """
        rows, drafted, at = np.stack(self._rows), np.array(self._drafted), np.array(self._places)
        weights = np.exp(rows - rows.max(axis=1, keepdims=True))
        mass, own = weights.sum(axis=1), np.arange(len(rows))
        mine = weights[own, drafted]
        weights[own, drafted] = 0.0
        row, tokens = np.nonzero(weights > MIN_SHARE * weights.sum(axis=1)[:, None])
        found = weights[row, tokens].astype(np.float64)
        order = np.lexsort((-found, row))
        row, tokens, found = row[order], tokens[order], found[order]
        alive = np.cumprod(np.append(1.0, mine / mass))
        return at[row], tokens, alive[row] * found / mass[row]
