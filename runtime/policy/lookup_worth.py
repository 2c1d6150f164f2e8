"""What looked-up draft tokens are worth, by how long the match is that they continue.

A match of n tokens is taken to go on with a chance of 1 - 1/n before anything is known: on text of the demo pair 2, 3,
4, 8 and 16 equal tokens went on in 0.5, 0.7, 0.8, 0.9 and 0.99 of the cases, which is where the form comes from. Every
token that stands makes the match longer by one. What is learnt are odds that multiply all of these: text that repeats
itself has them above 1, text that only looks alike below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .beliefs import FARTHEST, REQUEST_RATE, ROUTE_RATE, bounded

# Tokens of a lookup that is asked for although nothing is expected of it.
PROBE_TOKENS = 2


@dataclass
class LookupState:
    """What a session remembers of a route's lookups.

    shift: logits added to the chances. allowance: seconds saved up for a probe. tokens, seconds: of its last rounds,
    older ones counting less.
    """

    shift: float = 0.0
    allowance: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


class LookupWorth:
    """Of one request."""

    def __init__(self, state: LookupState, off: bool = False) -> None:
        """off: nothing is expected of them until probes say otherwise."""
        self._state = state
        self._shift = -FARTHEST if off else 0.0  # of this request, beside the route's
        self._odds = math.exp(bounded(self._shift + state.shift))
        self._place, self._length = -1, 0  # of this round's lookup in its draft, and the match; -1 for none

    def begin(self) -> None:
        """A round begins."""
        self._place = -1

    def take(self, lookup: tuple[int, int], place: int, alive: float, rows: Sequence[float], least: float) -> int:
        """How many tokens of a lookup to take behind `place` draft tokens.

        lookup: how many it has, and how many tokens match. alive: the chance of all draft tokens before it. rows:
        tokens that the time of a draft of so many tokens is worth. least: what another way to go on would gain.
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
        """As `take`, in front of all, of a lookup that is not worth it: none, or a few where enough has been saved.

        price: seconds that it loses. saved: for every round.
        """
        state = self._state
        if state.allowance < price:
            state.allowance += saved
            return 0
        state.allowance = 0.0
        self._place, self._length = 0, lookup[1]
        return min(PROBE_TOKENS, lookup[0])

    def observe(self, num_drafted: int, num_accepted: int) -> int:
        """Learn from a round; returns how many of its draft tokens were no lookup's."""
        place = self._place
        if not 0 <= place < num_drafted:
            return num_drafted
        error = 0.0
        for index in range(place, min(num_drafted, num_accepted + 1)):
            good = self._odds * (self._length + index - place - 1)
            error += (index < num_accepted) - good / (1.0 + good)
        if error:
            self._shift = bounded(self._shift + REQUEST_RATE * error)
            self._state.shift = bounded(self._state.shift + ROUTE_RATE * error)
            self._odds = math.exp(bounded(self._shift + self._state.shift))
        return place
