"""What leaves are worth: the draft's own probabilities, corrected by how often the target really chose them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ..drafting.leaves import Choices, JudgedLeaves
from ..sampling.distribution import Probabilities, Tokens

# About how long the host searches for leaves in a round: measured by `benchmarks/trees.py` on the demo pair, whose
# rounds of 3 ms became a twentieth longer.
HOST_SECONDS = 2e-4
# Upper estimate of the probability that the likeliest other token is chosen where a draft token is rejected. On the
# demo pair the target chooses it in 49 of 100 such positions.
BEST_SHARE = 0.5
# No row counts as less than this share of the mean of all measured rows: on a busy host, neighbouring widths may seem
# equally fast. Chosen after SmolLM2's costs were known, whose rows 4 to 6 take half of the mean.
LEAST_OF_MEAN = 0.5
# Tokens per round that leaves must be worth beyond the time of their rows. Chosen after SmolLM2's costs were known:
# they change by 2 % of a pass from one measurement to the next, and sessions whose leaves were worth less gained none.
LEAST_GAIN = 0.05
# From this rank on, all choices share one estimate.
RANKS = 8
# How many observed tokens the draft's own probabilities count for; and about how many observations are remembered.
PRIOR = 1.0
REMEMBERED = 64.0


@dataclass
class LeafBeliefs:
    """expected: by rank, the sum of the probabilities that the draft gave to the choices; seen: how many of them the
    target chose.

    Both are over all choices of a round, also those without a row: the target's choice is known anyway.
    """

    expected: list[float] = field(default_factory=lambda: [0.0] * RANKS)
    seen: list[float] = field(default_factory=lambda: [0.0] * RANKS)

    def factors(self, ranks: Tokens) -> Probabilities:
        """The factors for the draft's probabilities."""
        factors: Probabilities = (np.array(self.seen) + PRIOR) / (np.array(self.expected) + PRIOR)
        return factors[np.minimum(ranks, RANKS - 1)]

    def add(self, ranks: Tokens, values: Probabilities, hit: int | None) -> None:
        """Add the choices of a round; the target chose the one at `hit`."""
        ranks = np.minimum(ranks, RANKS - 1)
        expected, seen = self.expected + np.bincount(ranks, values, RANKS), np.array(self.seen)
        if hit is not None:
            seen[ranks[hit]] += 1.0
        fading = np.where(expected + seen > 2 * REMEMBERED, 0.5, 1.0)
        self.expected, self.seen = (expected * fading).tolist(), (seen * fading).tolist()


class LeafWorth:
    """Of one request; implements `LeafBudget`."""

    def __init__(self, beliefs: LeafBeliefs) -> None:
        self._beliefs = beliefs
        self.begin([], [0.0], 1.0, [0.0, 0.0])

    def begin(self, read: list[float], expected: list[float], rate: float, verify: Sequence[float]) -> None:
        """Begin a round. read: acceptance probability of its draft tokens, given that all earlier ones are accepted,
        filled in while it drafts; expected: the same known beforehand, where the confidence is not read. rate: tokens
        per second of the session. verify: seconds of a verify pass over 1, 2, ... rows, as far as they were measured.
        """
        self._read, self._expected, self._rate, self._verify = read, expected, rate, verify

    def values(self, choices: Choices) -> Probabilities:
        return self._word(choices) * self._beliefs.factors(choices.ranks)

    def learn(self, judged: JudgedLeaves) -> None:
        self._beliefs.add(judged.choices.ranks, self._word(judged.choices), judged.hit)

    def could_pay(self) -> bool:
        alive, most = 1.0, 0.0  # most: what the likeliest choice of each position could gain in all
        row = self._rate * max(self._least_step, min(self._steps))
        for chance in self._expected:
            most += max(0.0, BEST_SHARE * alive * (1.0 - chance) - row)
            alive *= chance
        return most > self._rate * HOST_SECONDS + LEAST_GAIN

    def costs(self, rows: int, most: int) -> Probabilities:
        seconds = [self.seconds(rows, count) for count in range(most + 1)]
        return self._rate * np.array(seconds) + LEAST_GAIN * (np.arange(most + 1) > 0)

    def seconds(self, rows: int, count: int) -> float:
        """What `count` leaves add to a pass over `rows` rows: the measured difference, but no less than
        `LEAST_OF_MEAN` says.
        """
        return max(self._pass(rows + count) - self._pass(rows), count * self._least_step)

    def _pass(self, rows: int) -> float:
        """Seconds of a pass over so many rows. Rows cost in steps, so beyond what was measured each one counts as the
        most expensive.
        """
        beyond = rows - len(self._verify)
        return self._verify[rows - 1] if beyond <= 0 else self._verify[-1] + beyond * max(self._steps)

    @property
    def _steps(self) -> list[float]:
        """Seconds of each measured row from the third on: a round with a draft has two without leaves."""
        steps = [after - before for before, after in pairwise(self._verify)]
        return steps[1:] or steps

    @property
    def _least_step(self) -> float:
        return LEAST_OF_MEAN * sum(self._steps) / len(self._steps)

    def _word(self, choices: Choices) -> Probabilities:
        """The draft's own probabilities, times the probability that the draft token before is rejected."""
        chances = np.array(self._read or self._expected)
        ending = np.cumprod(np.append(1.0, chances[:-1])) * (1.0 - chances)  # of the draft, by position
        word: Probabilities = ending[np.minimum(choices.places, len(chances) - 1)] * choices.shares
        return word
