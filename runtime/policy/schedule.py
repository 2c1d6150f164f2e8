"""How many tokens to draft: the same number every round, or as many as pay.

An adaptive round drafts on while the expected tokens are worth their time at the rate that is reached anyway
(docs/when-it-pays.md):

    draft token j + 1 iff some m > j has  sum_{i=j+1..m} a_i  >  lambda * ((m - j) * d + v(m + 1) - v(j + 1))

where a_i is the probability that token i is accepted, and lambda the tokens per second of the best fixed number, plain
decoding included. Schedules look at costs, earlier rounds, and the distributions that draft tokens are drawn from,
never at a token that may still be left out: so the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ...engines.base import Logits
from ..drafting.names import model_of
from ..drafting.rounds import Guide, RoundOutcome, RoundPlan, SequenceState
from .beliefs import FARTHEST, LEAST, REQUEST_RATE, ROUTE_RATE, bounded, logit, sigmoid
from .cost_model import Costs, RoundCosts
from .leaf_worth import LeafBeliefs, LeafWorth
from .lookup_worth import LookupState
from .pace import Pace
from .routes import RoutePolicy

# The fraction of the time of plain rounds that probes may take, and the number of tokens of a probe where the
# confidence is not read.
PROBE_BUDGET = 0.01
PROBE_TOKENS = 2
# Costs are looked up anew when the sequence has grown by so many tokens.
COST_STEP = 32

# (index in the draft, logits `[rows, vocab]` of the draft's pass) -> probability of the token to be accepted when all
# before it are
Chance = Callable[[int, Logits], float]


@runtime_checkable
class Schedule(Protocol):
    """Of one request. needs_host: whether the host has to run the rounds. Order of calls: `drafting/rounds.py`."""

    needs_host: bool

    def plan(self, sequence: SequenceState) -> RoundPlan:
        """What to do in the next round."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn what the round did."""
        ...


class FixedSchedule:
    """The same number every round."""

    needs_host = False

    def __init__(self, num_draft_tokens: int) -> None:
        self._plan = RoundPlan(num_draft_tokens)

    def plan(self, sequence: SequenceState) -> RoundPlan:
        return self._plan

    def observe(self, outcome: RoundOutcome) -> None:
        pass


@dataclass
class RouteState:
    """What a session remembers of a route between requests.

    calibration_shift: logits added to the probabilities that are read off the draft's confidence. prior_shift: logits
    added to the probabilities that calibration found by position. Both follow what is accepted. allowance: seconds
    saved up for the next probe. pace: measured times of rounds, over all routes; None to use the costs unchanged, so
    that no clock has an influence. lookups, leaves: the states of those. alone: it belongs to one request and must not
    depend on what other requests left, such as the part of its prompt that the draft's cache already has.
    """

    calibration_shift: float = 0.0
    prior_shift: float = 0.0
    allowance: float = 0.0
    pace: Pace | None = None
    lookups: LookupState = field(default_factory=LookupState)
    leaves: LeafBeliefs = field(default_factory=LeafBeliefs)
    alone: bool = False


class AdaptiveSchedule:
    """Of one request; implements `Schedule` and `Guide`.

    Where no number of draft tokens pays, rounds are plain, and the draft is asked again (a probe) once plain rounds
    have saved up for it: while drafting does not pay, probes take at most `PROBE_BUDGET` of the time.
    """

    needs_host = False

    def __init__(self, entry: RoutePolicy, costs: Costs, chance: Chance | None, state: RouteState, most: int) -> None:
        """chance: reads the draft model's confidence; None where that cannot be read while drafting.

        most: draft tokens per round.
        """
        self._with_model = model_of(entry.drafter) is not None
        self._guide: Guide | None = self if chance and self._with_model else None  # of this round
        self._entry, self._costs, self._chance, self._state, self._most = entry, costs, chance, state, most
        self._base = [logit(chance) for chance in (entry.chances + entry.chances[-1:] * most)[:most]]
        self._starts_off = entry.verdict == "off"
        self._calibration_shift = self._prior_shift = 0.0  # of this request, in addition to the route's
        self._measured_at = -COST_STEP
        self._table: RoundCosts
        self._rounds: list[float] = []  # assumed seconds by k
        self._verify: list[float] = []
        self._passes_over: list[float] = []  # seconds of target passes over 1, 2, ... rows, as far as measured
        self._draft, self._extra = 0.0, 1.0  # extra: the pace for which they were computed
        self._expected: list[float] = []
        self._read: list[float] = []  # acceptance probabilities of this round's draft tokens
        self._alive = self._trust = 1.0  # trust: factor of the odds of this round's readings
        self._prior: float | None = None  # the prior shift for which `_expected`, `_best` and `_rate` were computed
        self._best, self._rate = 0, 0.0
        self._probing = self._turned = False  # turned: to the other kind, by the pace
        self._could_pay = True  # whether a draft that is always accepted would
        self._passes = 0  # of the draft, in this round, where it is guided
        self.leaves = LeafWorth(state.leaves)
        self._started, self._had_draft = 0.0, -1  # this round; whether the last one had a draft, if there was one

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._guide = self if self._chance and self._with_model and sequence.guided else None
        return RoundPlan(self._begin(sequence), None, (), self._guide, self.leaves if self._with_model else None)

    def _begin(self, sequence: SequenceState) -> int:
        """Begin a round; returns how many tokens to draft."""
        pace, self._passes = self._state.pace, 0
        self._look_up_costs(sequence.length, pace.extra if pace else 1.0)
        prior_shift = self._state.prior_shift + self._prior_shift
        if prior_shift != self._prior:
            self._prior = prior_shift
            self._expected = [sigmoid(base + prior_shift) for base in self._base]
            self._best, self._rate = self._plan(self._expected)
        self._read, self._alive, self._probing = [], 1.0, False
        if self._reads:
            self._trust = math.exp(self._state.calibration_shift + self._calibration_shift)
        count = self._best and (self._most if self._reads else self._best)
        behind = 0  # rows that count in the price of a probe
        if self._with_model and not (count or self._state.alone):
            behind = sequence.missing_rows(self._entry.drafter)
        self._turned = pace is not None and pace.other(count > 0, self._price_of_other(behind))
        count = (0 if self._turned else count) if count else self._probe(behind, self._turned)
        self.leaves.begin(self._read, self._expected, self._rate, self._passes_over)
        if pace:
            self._started = pace.clock()
        return count

    def resume(self) -> None:
        """Learn after rounds that another schedule was asked about."""
        self._had_draft = -1

    def looked_up(self, count: int, length: int, drafted: int) -> int:
        return count

    def include(self, index: int, logits: Logits) -> bool:
        assert self._chance is not None
        self._passes += 1
        chance = self._chance(index, logits)
        chance = LEAST if chance < LEAST else min(chance, 1.0 - LEAST)
        odds = chance * self._trust
        chance = odds / (1.0 - chance + odds)
        if index == 0:
            self._shift_prior(chance - self._expected[0])
        alive = self._alive * chance
        verify = self._verify
        worth = alive - self._rate * (verify[index + 1] - verify[index])
        if worth <= 0 and not self._pays(index + 1, alive, worth) and not (self._probing and index == 0):
            # a probe's first token is always verified: else a draft that is trusted too little would never be tried
            # again
            return False
        self._read.append(chance)
        self._alive = alive
        return True

    def go_on(self, num_drafted: int) -> bool:
        return not num_drafted or self._pays(num_drafted, self._alive)

    @property
    def _reads(self) -> bool:
        """Whether the draft's confidence is read."""
        return self._guide is not None and self._chance is not None

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.judged_leaves is not None:
            self.leaves.learn(outcome.judged_leaves)
        if self._state.pace:
            self._time(self._state.pace, outcome)
        if outcome.draft_tokens:
            self._learn(outcome.num_drafted, outcome.num_accepted)

    def _learn(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from the model's tokens in a round."""
        judged = num_accepted + (num_accepted < num_drafted)
        error = num_accepted - sum((self._read or self._expected)[:judged])
        if self._read:
            self._calibration_shift = bounded(self._calibration_shift + REQUEST_RATE * error)
            self._state.calibration_shift = bounded(self._state.calibration_shift + ROUTE_RATE * error)
        else:
            self._shift_prior(error)
        if self._probing and num_accepted == num_drafted and self._could_pay:
            self._state.allowance = math.inf  # probe again at once

    def _shift_prior(self, error: float) -> None:
        self._prior_shift = bounded(self._prior_shift + REQUEST_RATE * error)
        self._state.prior_shift = bounded(self._state.prior_shift + ROUTE_RATE * error)

    def _plan(self, chances: list[float]) -> tuple[int, float]:
        """(expected number of draft tokens, the tokens per second that are reached anyway)."""
        return self._best_fixed(chances)

    def _best_fixed(self, chances: list[float]) -> tuple[int, float]:
        """The best fixed number of draft tokens, 0 where none pays, and its tokens per second."""
        best, rate = 0, 1.0 / self._rounds[0]
        tokens, alive = 1.0, 1.0
        for k, chance in enumerate(chances, start=1):
            alive *= chance
            tokens += alive
            if tokens / self._rounds[k] > rate:
                best, rate = k, tokens / self._rounds[k]
        return best, rate

    def _start_off(self) -> None:
        """Lower the expectation so far that rounds are plain until probes say otherwise."""
        while (
            self._base[0] > -FARTHEST
            and self._best_fixed([sigmoid(base + self._state.prior_shift) for base in self._base])[0]
        ):
            self._base = [base - 0.25 for base in self._base]
        self._starts_off = False

    def _pays(self, drafted: int, alive: float, gain: float = 0.0) -> bool:
        """Whether some number of further draft tokens is expected to gain more than its time is worth.

        gain: tokens gained already. Stops at the first number that pays: with most drafts that is the next.
        """
        verify, draft, rate, expected = self._verify, self._draft, self._rate, self._expected
        for index in range(drafted, self._most):
            alive *= expected[index]
            gain += alive - rate * (draft + verify[index + 1] - verify[index])
            if gain > 0:
                return True
        return False

    def _price_of_other(self, behind: int) -> float:
        """What a round of the other kind costs more, in plain rounds."""
        plain = self._table.plain
        if self._best:
            return 1.0 - 1.0 / (self._rate * plain)
        return self._price_of_probe(behind) / plain

    @property
    def _probe_tokens(self) -> int:
        return 1 if self._reads else min(PROBE_TOKENS, self._most)

    def _price_of_probe(self, behind: int) -> float:
        return self._rounds[self._probe_tokens] - self._rounds[0] + behind * self._costs.draft_prefill

    def _probe(self, behind: int, at_once: bool) -> int:
        """Draft tokens in place of a plain round: none, or a few where the allowance is large enough, or `at_once`."""
        state = self._state
        if state.allowance < self._price_of_probe(behind) and not at_once:
            state.allowance += PROBE_BUDGET * self._rounds[0]
            return 0
        state.allowance = 0.0
        self._probing = True
        return self._most if self._reads else self._probe_tokens

    def _time(self, pace: Pace, outcome: RoundOutcome) -> None:
        """Report the round's time to the pace, unless rows of unknown cost were added to it."""
        if outcome.num_leaves and outcome.asked:
            self._had_draft = -1
            return
        seconds, table, num_drafted = pace.clock() - self._started, self._table, outcome.num_drafted
        passes = self._passes or num_drafted
        if self._had_draft == (passes > 0):
            expected = table.rounds[num_drafted] + (passes - num_drafted) * table.draft
            if outcome.num_leaves:
                expected += self.leaves.seconds(outcome.rows, outcome.num_leaves) / self._extra
            pace.observe(passes > 0, seconds, table.plain, expected)
        self._had_draft = passes > 0

    def _look_up_costs(self, length: int, extra: float) -> None:
        if abs(length - self._measured_at) < COST_STEP:
            if extra == self._extra:
                return
        else:
            self._measured_at, self._table = length, self._costs.at(length)
        table, self._extra, self._prior = self._table, extra, None
        rounds = [table.rounds[k] if self._with_model or not k else table.looked_up(k) for k in range(self._most + 1)]
        self._rounds = [table.plain + extra * (seconds - table.plain) for seconds in rounds]
        self._could_pay = self._best_fixed([1.0 - LEAST] * self._most)[0] > 0
        self._verify = [extra * seconds for seconds in table.verify]  # of which only differences count
        self._passes_over = self._verify + [extra * seconds for seconds in table.tree]
        self._draft = extra * table.draft if self._with_model else 0.0
        if self._starts_off:
            self._start_off()
