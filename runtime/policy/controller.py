"""How many tokens to draft in each round: as many as gain most at what rounds cost, none included.

With a_i the probability that draft token i is accepted when all before it are, k tokens yield 1 + a_1 + a_1 a_2 + ...
tokens per round in R(k) seconds; the k with the most tokens per second is drafted (docs/when-it-pays.md). The
controller learns four things:

- acceptance of the model's tokens: one number in logits added to the a_i of calibration, or to a guess;
- acceptance of looked-up tokens: one number in logits added to what their lookup says;
- how much longer rounds take than costs say, by number of draft tokens (`timing.py`);
- all of these from rounds of the kind, plain or drafted, that it would not choose, within a budget of time.

Schedules look at costs, earlier rounds, and what a draft tells before a token is drawn, never at a token that may still
be left out: so the output stays the target's own (docs/losslessness.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from ...engines.base import Logits
from ..drafting.names import model_of
from ..drafting.rounds import RoundOutcome, RoundPlan, SequenceState
from .cost_model import Costs, RoundCosts
from .routes import RoutePolicy
from .timing import Timing

# What results hang on each: docs/internals/log.md, "One controller".
REQUEST_RATE, ROUTE_RATE = 0.3, 0.02  # logits per token that is judged: of a request, and of all further ones
FARTHEST = 6.0  # logits
# Time for exploring, in plain rounds: what each round adds while the session drafts and while it decodes plainly, and
# what drafting keeps in reserve, since needless plain decoding loses most.
DRAFTING, PLAIN, RESERVE = 0.01, 0.02, 4.5
# A session that drafts explores plain rounds while the cost of its draft is this uncertain (`Timing.uncertainty`).
UNCERTAIN = 0.1
RECENT = 6.0  # rounds over which the rate with lookups is a mean
COST_STEP = 32  # tokens by which the sequence grows before costs are looked up anew


def bounded(logits: float) -> float:
    return min(FARTHEST, max(-FARTHEST, logits))


def logit(chance: float) -> float:
    return bounded(math.log(max(chance, 1e-9) / max(1.0 - chance, 1e-9)))


def sigmoid(logits: float) -> float:
    return 1.0 / (1.0 + math.exp(-logits))


@dataclass
class RouteState:
    """What a session remembers of a route between requests.

    prior, lookups: logits added to the probabilities of the model's tokens, and of looked-up ones. calibration: those
    added to the draft's confidence. timing: over all routes; None to use the costs unchanged, so that no clock has an
    influence. budget: plain rounds saved up for exploring, without timing. tokens, seconds: of the last rounds,
    discounted. alone: it belongs to one request and must not depend on what other requests left, such as rows in the
    draft's cache.
    """

    prior: float = 0.0
    lookups: float = 0.0
    calibration: float = 0.0
    timing: Timing | None = None
    budget: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    alone: bool = False


class AdaptiveSchedule:
    """Of one request; implements `Schedule`, and `DraftStop` where lookups draft."""

    def __init__(self, entry: RoutePolicy, costs: Costs, state: RouteState, most: int) -> None:
        """most: draft tokens per round."""
        self._drafter, self._costs, self._state, self._most = entry.drafter, costs, state, most
        self._saved = state.timing or state  # where exploring is paid from
        self._model = model_of(entry.drafter) is not None
        self.needs_host = self._looks_up = entry.drafter != model_of(entry.drafter)
        self._base = [logit(chance) for chance in (entry.chances + entry.chances[-1:] * most)[:most]]
        self._off = entry.verdict == "off"
        self._prior = 0.0  # of this request, like the next ones in addition to the route's
        self._lookups = -FARTHEST if self._off else 0.0
        self._table: RoundCosts
        self._measured_at = -COST_STEP
        self._rounds: list[float] = []  # assumed seconds by k
        self._verify: list[float] = []  # of which only differences count
        self._expected: list[float] = []
        self._best, self._rate = 0, 0.0  # the number of the model's tokens that gain most, and tokens per second
        self._allowed = self._passes = 0  # in this round: the model's tokens, and passes that were asked for
        self._left = 0  # rounds of the other kind that are still to explore
        self._explores = False  # whether this round does
        self._match: tuple[int, Sequence[float]] | None = None  # of this round: where it begins in the draft, its odds
        self._follows, self._started = False, 0.0  # whether the round follows one that this schedule planned

    # Before a round

    def plan(self, sequence: SequenceState) -> RoundPlan:
        self._refresh(sequence.length)
        self._match, self._passes, timing = None, 0, self._state.timing
        count = self._best
        self._saved.budget += DRAFTING if count else PLAIN
        self._explores = self._model and self._explore(sequence)
        if self._explores:
            count = 0 if count else 1
        self._allowed = count
        if timing:
            self._started = timing.clock()
        if self._looks_up:
            return RoundPlan(count if self._explores else self._most, draft_stop=self)
        return RoundPlan(count)

    def _explore(self, sequence: SequenceState) -> bool:
        """Whether this round is of the other kind than the best: two in a row are, as the first finds cold caches."""
        state, plain = self._state, self._rounds[0]
        if self._left:
            self._left -= 1
            return True
        if self._best:
            if state.timing is None or not self._follows or state.timing.uncertainty(self._best) < UNCERTAIN:
                return False
            price = 2 * (1.0 - 1.0 / (max(self._rate, self._recent) * plain))
        else:
            missing = 0 if state.alone else sequence.missing_rows(self._drafter)
            price = 2 * (self._rounds[1] / plain - 1.0) + missing * self._costs.draft_prefill / plain
        if self._saved.budget - (RESERVE if self._best else 0.0) < price:
            return False
        self._saved.budget -= max(0.0, price)
        self._left = 1
        return True

    @property
    def _recent(self) -> float:
        """Tokens per second of the last rounds."""
        return self._state.tokens / self._state.seconds if self._state.seconds else 0.0

    def _refresh(self, length: int) -> None:
        if abs(length - self._measured_at) >= COST_STEP:
            self._measured_at, self._table = length, self._costs.at(length)
        table, timing = self._table, self._state.timing
        self._rounds = [table.seconds(k, k if self._model else 0) for k in range(self._most + 1)]
        self._verify = [*table.verify]
        if timing:
            self._rounds = [*map(mul, self._rounds, timing.factors)]
            self._verify = [*map(mul, self._verify, timing.factors)]
        self._choose()
        while self._off and self._best and self._prior > -FARTHEST:  # until outcomes say otherwise
            self._prior -= 0.25
            self._choose()
        self._off = False

    def _choose(self) -> None:
        shift = self._prior + self._state.prior
        self._expected = [sigmoid(base + shift) for base in self._base] if self._model else []
        self._best, self._rate, tokens = 0, 1.0 / self._rounds[0], 1.0
        for k, alive in enumerate(accumulate(self._expected, mul), start=1):
            tokens += alive
            if tokens / self._rounds[k] > self._rate:
                self._best, self._rate = k, tokens / self._rounds[k]

    # While it drafts, where lookups do

    def go_on(self, num_drafted: int) -> bool:
        return num_drafted < self._allowed

    def include(self, index: int, logits: Logits) -> bool:
        self._passes += 1
        self._match = None  # a lookup that came first was not legal
        return index < self._allowed

    def looked_up(self, odds: Sequence[float], drafted: int) -> int:
        """As many as gain most, more than the model would; else none, or one to explore."""
        if self._explores:
            return 0
        state, rows = self._state, self._verify
        alive = self._accepted(drafted)
        rate = max(self._rate, self._recent)  # matches come in stretches
        least, trust = self._gain(drafted), math.exp(bounded(self._lookups + state.lookups))
        taken, gain, best = 0, 0.0, least
        for index, good in enumerate(odds):
            alive *= trust * good / (1.0 + trust * good)
            gain += alive - rate * (rows[drafted + index + 1] - rows[drafted + index])
            if gain > best:
                taken, best = index + 1, gain
        if not taken and not drafted:
            price = (rows[1] - rows[0] + least / self._rate) / self._rounds[0]
            if self._saved.budget >= price:
                self._saved.budget -= price
                taken = 1
        self._match = (drafted, odds) if taken else None
        return taken

    def _gain(self, drafted: int) -> float:
        """Tokens that the model's further tokens gain over their time."""
        if self._allowed <= drafted:
            return 0.0
        tokens = sum(list(accumulate(self._expected[: self._allowed], mul))[drafted:])
        gain: float = tokens - self._rate * (self._rounds[self._allowed] - self._rounds[drafted])
        return max(0.0, gain)

    # After a round

    def resume(self) -> None:
        """Go on after rounds that another schedule planned."""
        self._follows = False

    def observe(self, outcome: RoundOutcome) -> None:
        state, drafted, accepted = self._state, outcome.num_drafted, outcome.num_accepted
        if state.timing:
            self._time(state.timing, outcome)
        by_model, right = outcome.of_model
        if by_model:
            self._learn_from(by_model, right)
            if self._explores and right == by_model and not self._left and self._could_pay:
                self._left = 1  # explore on
        if self._looks_up:
            keep = 1.0 - 1.0 / RECENT
            state.tokens = keep * state.tokens + accepted + 1
            passes = max(self._passes, by_model)
            expected = self._table.seconds(drafted, passes)
            slower = state.timing.factors[drafted] if state.timing else 1.0
            state.seconds = keep * state.seconds + expected * slower
            if self._match is not None and self._match[0] == by_model < drafted:
                self._learn_match(self._match[1][: drafted - by_model], accepted - by_model)

    def _learn_from(self, by_model: int, right: int) -> None:
        """Learn from the model's tokens, of which the first `right` were accepted."""
        self._learn(right - sum(self._expected[: right + (right < by_model)]))

    def _learn(self, error: float) -> None:
        self._prior = bounded(self._prior + REQUEST_RATE * error)
        self._state.prior = bounded(self._state.prior + ROUTE_RATE * error)

    def _accepted(self, drafted: int) -> float:
        """The probability that the model's first `drafted` tokens are accepted."""
        chance: float = math.prod(self._expected[:drafted])
        return chance

    @property
    def _could_pay(self) -> bool:
        """Whether a draft that is always accepted would."""
        return any((k + 1) / self._rounds[k] > 1.0 / self._rounds[0] for k in range(1, self._most + 1))

    def _learn_match(self, odds: Sequence[float], accepted: int) -> None:
        trust, error = math.exp(bounded(self._lookups + self._state.lookups)), 0.0
        for index, good in enumerate(odds[: accepted + 1]):
            error += (index < accepted) - trust * good / (1.0 + trust * good)
        self._lookups = bounded(self._lookups + REQUEST_RATE * error)
        self._state.lookups = bounded(self._state.lookups + ROUTE_RATE * error)

    def _time(self, timing: Timing, outcome: RoundOutcome) -> None:
        """Report the round's time, unless rows of unknown cost were added, or it may have had to catch up."""
        drafted, table = outcome.num_drafted, self._table
        passes = max(self._passes, outcome.of_model[0])
        if not self._follows:
            timing.pause()
        elif not outcome.num_candidates:
            timing.observe(drafted, timing.clock() - self._started, table.seconds(drafted, passes))
        self._follows = True
