"""What leaves are worth: the draft's own probabilities, corrected by how often the target went on so."""

from __future__ import annotations

from dataclasses import dataclass, field

# Beyond this rank choices are believed alike.
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

    def factor(self, rank: int) -> float:
        """By which the draft's word is multiplied."""
        place = min(rank, RANKS - 1)
        return (self.seen[place] + PRIOR) / (self.expected[place] + PRIOR)

    def add(self, rank: int, value: float, seen: bool) -> None:
        place = min(rank, RANKS - 1)
        self.expected[place] += value
        self.seen[place] += seen
        if self.expected[place] + self.seen[place] > 2 * REMEMBERED:
            self.expected[place], self.seen[place] = 0.5 * self.expected[place], 0.5 * self.seen[place]
