"""What leaves are worth: the draft's own probabilities, corrected by how often the target went on so."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ..drafting.leaves import Choices
from ..sampling.distribution import Probabilities, Tokens

# What it takes the host to look for leaves in a round, about: chosen behind `benchmarks/trees.py` on the demo pair,
# whose rounds of 3 ms it made a twentieth longer.
HOST_SECONDS = 2e-4
# Where a draft token fails, how likely the likeliest of the others is taken to be at best. On the demo pair it is what
# the target says in 49 of 100 such places.
BEST_SHARE = 0.5
# From this rank on choices are believed alike.
RANKS = 8
# Tokens that the draft's own word counts for, beside what was seen; and how many of them are remembered, about.
PRIOR = 1.0
REMEMBERED = 64.0


@dataclass
class LeafBeliefs:
    """expected: by rank, the sum of the values that choices had by the draft's word; seen: how many of them came true.

    Both are of all choices that a round had, also of those that no row was spent on: what the target went on with is
    known anyway.
    """

    expected: list[float] = field(default_factory=lambda: [0.0] * RANKS)
    seen: list[float] = field(default_factory=lambda: [0.0] * RANKS)

    def factors(self, ranks: Tokens) -> Probabilities:
        """By which the draft's word is multiplied."""
        factors: Probabilities = (np.array(self.seen) + PRIOR) / (np.array(self.expected) + PRIOR)
        return factors[np.minimum(ranks, RANKS - 1)]

    def add(self, ranks: Tokens, values: Probabilities, hit: int | None) -> None:
        """The choices of a round; the one at `hit` came true."""
        ranks = np.minimum(ranks, RANKS - 1)
        expected, seen = self.expected + np.bincount(ranks, values, RANKS), np.array(self.seen)
        if hit is not None:
            seen[ranks[hit]] += 1.0
        fading = np.where(expected + seen > 2 * REMEMBERED, 0.5, 1.0)
        self.expected, self.seen = (expected * fading).tolist(), (seen * fading).tolist()


class LeafWorth:
    """Of one request; implements `LeafBudget`. seconds: of the newest round's leaves. unpriced: whether it has leaves
    that were asked for, whatever they cost.
    """

    def __init__(self, beliefs: LeafBeliefs) -> None:
        self._beliefs = beliefs
        self.begin([], [0.0], 1.0, [0.0, 0.0])

    def begin(self, read: list[float], expected: list[float], rate: float, verify: list[float]) -> None:
        """A round. read: chances of its draft tokens to stand where all in front do, filled in while it drafts;
        expected: the same in front of it, where nobody reads them. rate: tokens a second that are reached anyway.
        verify: seconds of a verify pass over 1, 2, ... rows.
        """
        self._read, self._expected, self._rate, self._verify = read, expected, rate, verify
        self.seconds, self.unpriced = 0.0, False

    def values(self, choices: Choices) -> Probabilities:
        return self._word(choices) * self._beliefs.factors(choices.ranks)

    def learn(self, choices: Choices, hit: int | None) -> None:
        self._beliefs.add(choices.ranks, self._word(choices), hit)

    def could_pay(self) -> bool:
        alive, most = 1.0, 0.0  # the chance that the draft ends at one place, where that is largest
        for chance in self._expected:
            most = max(most, alive * (1.0 - chance))
            alive *= chance
        return BEST_SHARE * most > self.price + self._rate * HOST_SECONDS

    @property
    def price(self) -> float:
        """Rows cost in steps, and wider passes than these were not measured: each is taken for the dearest."""
        return self._rate * max(after - before for before, after in pairwise(self._verify))

    def add_leaves(self, count: int) -> None:
        self.seconds = count * self.price / self._rate

    def _word(self, choices: Choices) -> Probabilities:
        """The draft's own, of what remains where a draft token is expected to fail."""
        chances = np.array(self._read or self._expected)
        ending = np.cumprod(np.append(1.0, chances[:-1])) * (1.0 - chances)  # of the draft, by place
        word: Probabilities = ending[np.minimum(choices.places, len(chances) - 1)] * choices.shares
        return word


class AskedLeaves:
    """As many as were asked for, by the draft's own word; implements `LeafBudget`. The schedule is told of them."""

    price = 0.0

    def __init__(self, worth: LeafWorth) -> None:
        self._worth = worth

    def values(self, choices: Choices) -> Probabilities:
        return choices.values

    def could_pay(self) -> bool:
        return True

    def add_leaves(self, count: int) -> None:
        self._worth.unpriced = count > 0

    def learn(self, choices: Choices, hit: int | None) -> None:
        self._worth.learn(choices, hit)
