"""Second choices of the draft: tokens for rows beside it, from rows of logits that it has given anyway.

Such a token is never judged. It only says whose row the target computes in the same pass, so it may be chosen after the
draft was drawn, and by anything: the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...engines.base import Logits
from ..sampling.distribution import Row
from ..sampling.leaves import Leaf
from ..sampling.rules import Rule
from ..sampling.truncation import largest

# Where rows have a price, choices of a smaller share are not looked at: so there are no more than 20 a place.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Choice:
    """A token that was not drafted. rank: among those of its place, from 0. By the draft's own probabilities, value is
    the chance that the draft stands up to the place and the target goes on with this token there, and share the chance
    of it if the target goes on with another than the drafted token.
    """

    leaf: Leaf
    rank: int
    value: float
    share: float


class LeafBudget(Protocol):
    def value(self, choice: Choice) -> float:
        """Tokens that its row is expected to give."""
        ...

    def price(self, rows: int) -> float:
        """Tokens that the time of one row more is worth, in a verify pass of `rows`."""
        ...

    def add_leaves(self, rows: int, count: int) -> None:
        """The round's pass, of `rows` otherwise, has as many leaves."""
        ...

    def learn(self, choices: Sequence[Choice], hit: Choice | None) -> None:
        """A round had these choices, taken or not; the target went on with `hit`."""
        ...


@dataclass(frozen=True)
class LeafPlan:
    """most: leaves a round. budget: None where that many are taken whatever they are worth."""

    most: int
    budget: LeafBudget | None = None


class SecondChoices:
    """A rule that also takes note of each row's likeliest tokens beside the one that was drafted from it."""

    def __init__(self, rule: Rule, plan: LeafPlan, never: Collection[int], vocab_size: int) -> None:
        """never: tokens behind which nothing is asked for. vocab_size: the target's; a draft may know more ids."""
        self._rule, self._plan, self._never, self._vocab_size = rule, plan, frozenset(never), vocab_size
        self.constrained, self.legal, self.forced, self.accept = rule.constrained, rule.legal, rule.forced, rule.accept
        self._choices: list[Choice] = []
        self._place, self._alive = 0, 1.0

    def propose(self, draft_logits: Row) -> int | None:
        token = self._rule.propose(draft_logits)
        if token is not None:
            self._note(draft_logits[: self._vocab_size], token)
        return token

    def certain(self, draft_token: int) -> None:
        self._rule.certain(draft_token)
        self._place += 1

    def take(self, rows: int, room: int) -> list[Leaf]:
        """The round's leaves beside a chain of `rows`, at most `room` of them, those of most value first."""
        budget = self._plan.budget
        ranked = sorted(((budget.value(one) if budget else one.value, one.leaf) for one in self._choices), key=_order)
        leaves: list[Leaf] = []
        for value, leaf in ranked[: max(0, min(self._plan.most, room))]:
            if not value > (budget.price(rows + len(leaves)) if budget else 0.0):
                break
            leaves.append(leaf)
        if budget:
            budget.add_leaves(rows, len(leaves))
        return leaves

    def accept_tree(
        self, target_logits: Logits, draft_tokens: Sequence[int], leaves: Sequence[Leaf]
    ) -> tuple[int, list[int]]:
        choices, self._choices, self._place, self._alive = self._choices, [], 0, 1.0
        count, following = self._rule.accept_tree(target_logits, draft_tokens, leaves)
        if self._plan.budget:
            found = Leaf(count, following[0])
            self._plan.budget.learn(choices, next((one for one in choices if one.leaf == found), None))
        return count, following

    def _note(self, row: Row, token: int) -> None:
        top = float(row.max())
        mass, mine = float(np.exp(row - top).sum()), math.exp(float(row[token]) - top)
        rest = mass - mine
        if self._plan.budget and rest > 0:
            likely = np.flatnonzero(row > top + math.log(LEAST_SHARE * rest))
        else:
            count = min(self._plan.most + 1, len(row))
            likely = largest(row, count)
            likely = likely[np.argpartition(row[likely], -count)[-count:]]
        weights = np.exp(row[likely] - top).tolist()
        found = sorted(zip(weights, likely.tolist(), strict=True), key=lambda one: -one[0])[: self._plan.most + 1]
        others = [one for one in found if one[1] != token and one[1] not in self._never][: self._plan.most]
        for rank, (weight, other) in enumerate(others):
            value, share = self._alive * weight / mass, weight / rest if rest > 0 else 0.0
            self._choices.append(Choice(Leaf(self._place, other), rank, value, share))
        self._alive *= mine / mass
        self._place += 1


def _order(valued: tuple[float, Leaf]) -> tuple[float, int]:
    """The most valuable first, and among equals the nearer place."""
    value, leaf = valued
    return -value, leaf.place
