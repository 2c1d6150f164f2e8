"""Leaves, alternatives to draft tokens: tokens for additional rows of the verify pass, from logits that the draft has
given.

A leaf is never judged. It only says whose row the target computes in the same pass, so it may be chosen after the draft
was drawn, and in any way: the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..sampling.distribution import Probabilities, Row, Tokens
from ..sampling.leaves import Leaf
from ..sampling.rules import Proposer

# Choices with a smaller share are ignored: so there are at most 50 per position, and hardly ever more than ten.
LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Choices:
    """Tokens that were not drafted, `[n]` each, by position, and within a position the likeliest first. ranks: within
    their position.

    By the draft's own probabilities. value: the probability that the draft is accepted up to the position and the
    target chooses this token there. share: the probability that the target chooses it, given that it rejects the draft
    token.
    """

    places: Tokens
    tokens: Tokens
    ranks: Tokens
    values: Probabilities
    shares: Probabilities

    def leaf(self, index: int) -> Leaf:
        return Leaf(int(self.places[index]), int(self.tokens[index]))


class LeafBudget(Protocol):
    def values(self, choices: Choices) -> Probabilities:
        """The expected number of tokens from each one's row, `[n]`."""
        ...

    def costs(self, rows: int, most: int) -> Probabilities:
        """The number of tokens that the time of 0, 1, ..., `most` rows after `rows` others is worth, `[most + 1]`."""
        ...

    def could_pay(self) -> bool:
        """Whether any leaf of the next round could be worth its row and the time to search for it."""
        ...


@dataclass(frozen=True)
class JudgedLeaves:
    """A round's choices, with a row or without. hit: the one that the target chose, None if none."""

    choices: Choices
    hit: int | None


@dataclass(frozen=True)
class LeafLimit:
    """most: leaves per round. asked: whether the request asks for that many, whatever they are worth."""

    most: int
    asked: bool = False


class Leaves(Protocol):
    """Where a round's leaves come from."""

    def begin(self, count: int, budget: LeafBudget | None) -> None:
        """Begin a round that drafts up to `count` tokens. budget: see `RoundPlan.leaves`."""
        ...

    def take(self, rows: int, room: int) -> list[Leaf]:
        """At most `room` leaves for the draft that the round has proposed. rows: those of the pass without leaves."""
        ...

    def judged(self, count: int, token: int) -> JudgedLeaves | None:
        """What the target chose, `token` after `count` accepted draft tokens; None where nobody looked for leaves."""
        ...


class LeafChoices:
    """A `Proposer` that also records, for each row, the likeliest tokens apart from the one that was drafted from it;
    implements `Leaves`.
    """

    def __init__(self, rule: Proposer, limit: LeafLimit, never: Collection[int], vocab_size: int) -> None:
        """never: tokens after which no further token is needed. vocab_size: the target's; a draft may know more ids."""
        self._rule, self._limit, self._never, self._vocab_size = rule, limit, frozenset(never), vocab_size
        self._budget: LeafBudget | None = None
        self._rows: list[Row] = []
        self._drafted: list[int] = []  # one for each row
        self._places: list[int] = []
        self._place, self._looking = 0, False
        self._choices: Choices | None = None

    def begin(self, count: int, budget: LeafBudget | None) -> None:
        self._budget, self._choices, self._place = budget, None, 0
        self._rows, self._drafted, self._places = [], [], []

    def legal(self, tokens: Sequence[int]) -> int:
        return self._rule.legal(tokens)

    def propose(self, draft_logits: Row) -> int | None:
        token = self._rule.propose(draft_logits)
        if token is not None and self._looks():
            self._rows.append(draft_logits[: self._vocab_size].copy())  # the next pass overwrites it
            self._drafted.append(token)
            self._places.append(self._place)
        self._place += token is not None
        return token

    def certain(self, draft_token: int) -> None:
        self._rule.certain(draft_token)
        self._place += 1

    def _looks(self) -> bool:
        """Decided once per round, at its first row."""
        if not self._place:
            self._looking = self._limit.asked or (self._budget is not None and self._budget.could_pay())
        return self._looking

    def take(self, rows: int, room: int) -> list[Leaf]:
        """The most valuable choices, as many as are worth most beyond what their rows cost."""
        budget, most = None if self._limit.asked else self._budget, min(self._limit.most, room)
        leaves: list[Leaf] = []
        self._choices = choices = self._find() if self._rows else None
        if choices is not None and most > 0:
            values = budget.values(choices) if budget else choices.values
            order = [i for i in np.argsort(-values, kind="stable").tolist() if choices.tokens[i] not in self._never]
            gains = np.append(0.0, np.cumsum(values[order[:most]]))
            if budget:
                gains -= budget.costs(rows, len(gains) - 1)
            leaves = [choices.leaf(index) for index in order[: int(gains.argmax())]]
        return leaves

    def judged(self, count: int, token: int) -> JudgedLeaves | None:
        choices = self._choices
        if choices is None:
            return None
        found = np.flatnonzero((choices.places == count) & (choices.tokens == token))
        return JudgedLeaves(choices, int(found[0]) if len(found) else None)

    def _find(self) -> Choices:
        """All of the round's rows at once, which takes less time than one by one."""
        rows, drafted, at = np.stack(self._rows), np.array(self._drafted), np.array(self._places)
        weights = np.exp(rows - rows.max(axis=1, keepdims=True))
        mass, own = weights.sum(axis=1), np.arange(len(rows))
        mine = weights[own, drafted]
        weights[own, drafted] = 0.0
        rest = weights.sum(axis=1)
        row, tokens = np.nonzero(weights > LEAST_SHARE * rest[:, None])
        found = weights[row, tokens].astype(np.float64)
        order = np.lexsort((-found, row))
        row, tokens, found = row[order], tokens[order], found[order]
        ranks = np.arange(len(row)) - np.searchsorted(row, row)
        alive = np.cumprod(np.append(1.0, mine / mass))
        return Choices(at[row], tokens, ranks, alive[row] * found / mass[row], found / rest[row])
