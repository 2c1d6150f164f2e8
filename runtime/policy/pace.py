"""How much longer rounds with a draft take than plain ones while a session runs, compared with the measured costs.

Costs are measured once, on a host that does other things too, and a session whose costs are twice too high would decode
plainly for good. So now and then two rounds in a row are of the other kind: plain ones while the session drafts,
drafted ones while it does not. The second is compared with those right before it, which the host has slowed as much.
The first is not timed, since it finds the CPU's caches as the other kind left them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter

# What comparisons may cost, in plain rounds: at first, while the session decodes plainly and while it drafts, and for
# every round. The budget is larger while it decodes plainly, since needless plain decoding loses most.
START, START_DRAFTING = 6.0, 1.5
BUDGET = 0.01
# How many rounds before it a comparison is made with, and how many rounds it takes.
NEIGHBOURS = 3
# How many comparisons count, and as how many the measured costs count.
WINDOW = 24
PRIOR = 3.0
# Bounds of `extra`.
LEAST, MOST = 0.25, 4.0


class Pace:
    """For one session and drafter: decides when to compare, and keeps `extra`.

    extra: the time of rounds with a draft over plain ones, as a factor of what the costs say.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.extra = 1.0
        self._found: deque[float] = deque(maxlen=WINDOW)
        self._before: deque[tuple[float, float]] = deque(maxlen=NEIGHBOURS)
        self._drafting = False  # what `_before` did
        self._purse = {False: START, True: START_DRAFTING}  # by kind: whether it drafts
        self._second = False  # whether the next round is the second of the other kind

    def other(self, drafting: bool, price: float) -> bool:
        """Whether the next round is to be of the other kind than the schedule's choice.

        drafting: the schedule's choice. price: what a round of the other kind costs more, in plain rounds.
        """
        if drafting != self._drafting:
            self._drafting, self._second = drafting, False
            self._before.clear()
        if self._second:
            self._second = False
            return True
        self._purse[drafting] += BUDGET
        if self._purse[drafting] < 2 * price or len(self._before) < NEIGHBOURS:
            return False
        self._purse[drafting] -= max(0.0, 2 * price)
        self._second = True
        return True

    def observe(self, drafted: bool, seconds: float, plain: float, expected: float) -> None:
        """Learn from a round that followed one of its kind. plain, expected: seconds of a plain round, and of this one,
        by costs.
        """
        if drafted == self._drafting:
            self._before.append((seconds, expected))
            return
        if len(self._before) < NEIGHBOURS:
            return
        slower = median(taken / of for taken, of in self._before)  # than costs say
        typical = median(of for _, of in self._before)
        self._before.clear()
        with_draft, without = (slower * typical, seconds) if self._drafting else (seconds, slower * plain)
        cost = typical if self._drafting else expected
        if cost > plain:
            self._found.append((with_draft / without - 1.0) * plain / (cost - plain))
            share = len(self._found) / (len(self._found) + PRIOR)
            self.extra = min(MOST, max(LEAST, 1.0 + share * (median(self._found) - 1.0)))
