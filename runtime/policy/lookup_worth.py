"""What looked-up draft tokens are worth, by the length of the match that they continue.

A match of n tokens is assumed to continue with a probability of 1 - 1/n. The form comes from text of the demo pair,
where 2, 3, 4, 8 and 16 equal tokens continued in 0.5, 0.7, 0.8, 0.9 and 0.99 of the cases. Every accepted token makes
the match longer by one. What is learnt are odds that multiply all of these: above 1 in text that repeats itself, below
1 in text that only looks alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .beliefs import FARTHEST, REQUEST_RATE, ROUTE_RATE, bounded

# Tokens of a lookup that is used as a probe.
PROBE_TOKENS = 2


@dataclass
class LookupState:
    """What a session remembers of a route's lookups.

    shift: logits added to the probabilities. allowance: seconds saved up for a probe. tokens, seconds: of its last
    rounds, with decay.
    """

    shift: float = 0.0
    allowance: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


class LookupWorth:
    """Of one request."""

    def __init__(self, state: LookupState, off: bool = False) -> None:
        """off: expected not to pay until probes say otherwise."""
        self._state = state
        self._shift = -FARTHEST if off else 0.0  # of this request, in addition to the route's
        self._odds = math.exp(bounded(self._shift + state.shift))
        self._place, self._length = -1, 0  # position of this round's lookup in its draft, and the match; -1 for none

    def begin(self) -> None:
        """Begin a round."""
        self._place = -1

    def take(self, lookup: tuple[int, int], place: int, alive: float, rows: Sequence[float], least: float) -> int:
        """How many tokens of a lookup to take after `place` draft tokens.

        lookup: how many it has, and how many tokens match. alive: the probability that all draft tokens before it are
        accepted. rows: tokens that the time of a draft of so many tokens is worth. least: the gain of the alternative.
        """
        count, length = lookup
        taken, gain, best, odds = 0, 0.0, least, self._odds
        for index in range(count):
            good = odds * (length + index - 1)
            alive *= good / (1.0 + good)
            gain += alive - (rows[place + index + 1] - rows[place + index])
            if gain > best:
                taken, best = index + 1, gain
        self._place, self._length = (place, length) if taken else (-1, 0)
        return taken

    def probe(self, lookup: tuple[int, int], price: float, saved: float) -> int:
        """As `take` at the start of a round, for a lookup that is not worth it: none, or a few as a probe once enough
        is saved.

        price: seconds that the probe loses. saved: seconds that every round adds.
        """
        state = self._state
        if state.allowance < price:
            state.allowance += saved
            return 0
        state.allowance = 0.0
        self._place, self._length = 0, lookup[1]
        return min(PROBE_TOKENS, lookup[0])

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a round."""
        place = self._place
        if not 0 <= place < num_drafted:
            return
        error = 0.0
        for index in range(place, min(num_drafted, num_accepted + 1)):
            good = self._odds * (self._length + index - place - 1)
            error += (index < num_accepted) - good / (1.0 + good)
        if error:
            self._shift = bounded(self._shift + REQUEST_RATE * error)
            self._state.shift = bounded(self._state.shift + ROUTE_RATE * error)
            self._odds = math.exp(bounded(self._shift + self._state.shift))
