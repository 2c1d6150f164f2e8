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

from ...engines.base import Logits
from ..sampling.distribution import Probabilities, Row, Tokens
from ..sampling.leaves import Leaf
from ..sampling.rules import Rule

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

    def add_leaves(self, rows: int, count: int) -> None:
        """Report that the round's pass has `count` leaves after `rows` other rows."""
        ...

    def learn(self, choices: Choices, hit: int | None) -> None:
        """Report a round's choices, with a row or without; the target chose the one at `hit`."""
        ...


@dataclass(frozen=True)
class LeafPlan:
    """most: leaves per round. budget: None to take that many whatever they are worth."""

    most: int
    budget: LeafBudget | None = None


class LeafChoices:
    """A rule that also records, for each row, the likeliest tokens apart from the one that was drafted from it."""

    def __init__(self, rule: Rule, plan: LeafPlan, never: Collection[int], vocab_size: int) -> None:
        """never: tokens after which no further token is needed. vocab_size: the target's; a draft may know more ids."""
        self._rule, self._plan, self._never, self._vocab_size = rule, plan, frozenset(never), vocab_size
        self.constrained, self.legal, self.forced, self.accept = rule.constrained, rule.legal, rule.forced, rule.accept
        self.siblings = rule.siblings
        self._rows: list[Row] = []
        self._drafted: list[int] = []  # one for each row
        self._places: list[int] = []
        self._place, self._looking = 0, False
        self._choices: Choices | None = None

    def begin(self, count: int) -> None:
        """Nothing to do: leaves are found after drafting, in the rows that the draft gave."""

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
            self._looking = self._plan.budget is None or self._plan.budget.could_pay()
        return self._looking

    def take(self, rows: int, room: int) -> list[Leaf]:
        """The most valuable choices, as many as are worth most beyond what their rows cost."""
        budget, most = self._plan.budget, min(self._plan.most, room)
        leaves: list[Leaf] = []
        self._choices = choices = self._find() if self._rows else None
        if choices is not None and most > 0:
            values = budget.values(choices) if budget else choices.values
            order = [i for i in np.argsort(-values, kind="stable").tolist() if choices.tokens[i] not in self._never]
            gains = np.append(0.0, np.cumsum(values[order[:most]]))
            if budget:
                gains -= budget.costs(rows, len(gains) - 1)
            leaves = [choices.leaf(index) for index in order[: int(gains.argmax())]]
        if budget:
            budget.add_leaves(rows, len(leaves))
        return leaves

    def accept_tree(
        self, target_logits: Logits, draft_tokens: Sequence[int], leaves: Sequence[Leaf]
    ) -> tuple[int, list[int]]:
        count, following = self._rule.accept_tree(target_logits, draft_tokens, leaves)
        choices, self._choices, self._place = self._choices, None, 0
        if choices is not None and self._plan.budget:
            found = np.flatnonzero((choices.places == count) & (choices.tokens == following[0]))
            self._plan.budget.learn(choices, int(found[0]) if len(found) else None)
        return count, following

    def _find(self) -> Choices:
        """All of the round's rows at once, which takes less time than one by one."""
        rows, drafted, at = np.stack(self._rows), np.array(self._drafted), np.array(self._places)
        self._rows, self._drafted, self._places = [], [], []
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
