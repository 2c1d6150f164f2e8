"""A distribution of the next token: over few possible tokens, or over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
Probabilities = NDArray[np.float64]
Row = NDArray[np.float32]  # [vocab], logits
BLOCK = 256  # probabilities; a draw sums up those of one block one by one, which is ten times slower than a sum of all


@dataclass(frozen=True)
class Distribution:
    """probs `[n] float64`, of the tokens `[n]` (ascending); `tokens` is None for all ids in order.

    Truncation (top-k, top-p, min-p) leaves few tokens of a large vocabulary, and later steps cost time by their number.
    """

    probs: Probabilities
    tokens: Tokens | None = None

    @classmethod
    def point_mass(cls, token: int) -> Distribution:
        """All probability on one token: the distribution of a deterministic draft token."""
        return cls(np.ones(1), np.array([token], np.int64))

    def of(self, token: int) -> float:
        if self.tokens is None:
            return float(self.probs[token]) if token < len(self.probs) else 0.0
        place = int(self.tokens.searchsorted(token))
        return float(self.probs[place]) if place < len(self.tokens) and self.tokens[place] == token else 0.0

    def over(self, other: Distribution) -> Probabilities:
        """The probability of each token that `other` has, in its order."""
        if other.tokens is None:
            found = np.zeros(len(other.probs))
            if self.tokens is None:
                shared = min(len(found), len(self.probs))
                found[:shared] = self.probs[:shared]
            else:
                found[self.tokens] = self.probs
        elif self.tokens is None:
            found = np.append(self.probs, 0.0)[np.minimum(other.tokens, len(self.probs))]
        else:
            places = other.tokens.searchsorted(self.tokens)
            places[places == len(other.tokens)] = 0
            both = other.tokens[places] == self.tokens
            found = np.zeros(len(other.tokens))
            found[places[both]] = self.probs[both]
        return found

    def excess(self, scale: float, other: Distribution) -> Distribution:
        """max(scale * self - other, 0), not normalized."""
        left = scale * self.probs
        if self.tokens is None and other.tokens is not None:
            left[other.tokens] -= other.probs
        elif self.tokens is None:
            shared = min(len(left), len(other.probs))
            left[:shared] -= other.probs[:shared]
        else:
            left -= other.over(self)
        np.maximum(left, 0.0, out=left)
        return Distribution(left, self.tokens)

    def items(self) -> Iterator[tuple[int, float]]:
        """Every possible token, with its probability."""
        for place in self.probs.nonzero()[0].tolist():
            yield place if self.tokens is None else int(self.tokens[place]), float(self.probs[place])

    @property
    def mass(self) -> float:
        """1 up to rounding for a distribution, less for an excess."""
        return float(self.probs.sum())

    def draw(self, uniform: float) -> int:
        """The token at `uniform` in [0, 1) of the cumulative distribution, which need not sum to one."""
        sums = np.add.reduceat(self.probs, np.arange(0, len(self.probs), BLOCK)).cumsum()
        goal = uniform * sums[-1]
        block = min(int(sums.searchsorted(goal, side="right")), len(sums) - 1)
        begin, end = block * BLOCK, min((block + 1) * BLOCK, len(self.probs))
        rest = goal - (sums[block - 1] if block else 0.0)
        place = begin + int(self.probs[begin:end].cumsum().searchsorted(rest, side="right"))
        if place == end:
            # Rounding can push the goal onto the total, the rest onto the block's: the last token with mass is meant.
            place = int(self.probs[:end].nonzero()[0][-1])
        return place if self.tokens is None else int(self.tokens[place])
