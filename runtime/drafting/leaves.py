"""Second choices of the draft: tokens for rows beside it, from rows of logits that it has given anyway.

Such a token is never judged. It only says whose row the target computes in the same pass, so it may be chosen after the
draft was drawn, and by anything: the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..sampling.distribution import Row
from ..sampling.leaves import Leaf
from ..sampling.rules import Rule
from ..sampling.truncation import largest


class RowPrices(Protocol):
    def price(self, rows: int) -> float:
        """Tokens that the time of one row more is worth, in a verify pass of `rows`."""
        ...

    def add_leaves(self, rows: int, count: int) -> None:
        """The round's pass, of `rows` otherwise, has as many leaves."""
        ...


@dataclass(frozen=True)
class LeafPlan:
    """most: leaves a round. prices: None where that many are taken whatever they are worth."""

    most: int
    prices: RowPrices | None = None


class SecondChoices:
    """A rule that also takes note of each row's likeliest tokens beside the one that was drafted from it.

    The value of one is the chance that the draft stands up to its place and the target then goes on with it, by the
    draft's own probabilities: right in order, and about right in size.
    """

    def __init__(self, rule: Rule, plan: LeafPlan, never: Collection[int], vocab_size: int) -> None:
        """never: tokens behind which nothing is asked for. vocab_size: the target's; a draft may know more ids."""
        self._rule, self._plan, self._never, self._vocab_size = rule, plan, frozenset(never), vocab_size
        self.constrained, self.legal, self.forced = rule.constrained, rule.legal, rule.forced
        self.accept, self.accept_tree = rule.accept, rule.accept_tree
        self._found: list[tuple[float, Leaf]] = []
        self._place, self._alive = 0, 1.0

    def propose(self, draft_logits: Row) -> int | None:
        token = self._rule.propose(draft_logits)
        if token is not None:
            self._note(draft_logits[: self._vocab_size], token)
        return token

    def _note(self, row: Row, token: int) -> None:
        top = float(row.max())
        mass = float(np.exp(row - top).sum()) / self._alive
        count = min(self._plan.most + 1, len(row))
        likely = largest(row, count)
        likely = likely[np.argpartition(row[likely], -count)[-count:]]
        for other, value in zip(likely.tolist(), (np.exp(row[likely] - top) / mass).tolist(), strict=True):
            if other != token and other not in self._never:
                self._found.append((value, Leaf(self._place, other)))
        self._alive = float(np.exp(row[token] - top)) / mass
        self._place += 1

    def certain(self, draft_token: int) -> None:
        self._rule.certain(draft_token)
        self._place += 1

    def take(self, rows: int, room: int) -> list[Leaf]:
        """The round's leaves beside a chain of `rows`, at most `room` of them, the best first.

        Those of draft tokens that never came are dropped with them: what is taken starts anew.
        """
        found, plan = sorted(self._found, key=_rank), self._plan
        self._found, self._place, self._alive = [], 0, 1.0
        leaves: list[Leaf] = []
        for value, leaf in found[: max(0, min(plan.most, room))]:
            if not value > (plan.prices.price(rows + len(leaves)) if plan.prices else 0.0):
                break
            leaves.append(leaf)
        if plan.prices:
            plan.prices.add_leaves(rows, len(leaves))
        return leaves


def _rank(found: tuple[float, Leaf]) -> tuple[float, int, int]:
    """The likeliest first, and among equals the nearer place and the lower id."""
    value, leaf = found
    return -value, leaf.place, leaf.token
