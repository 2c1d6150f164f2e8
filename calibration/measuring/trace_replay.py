"""Replays a recorded request with other drafters and other numbers of draft tokens.

The trace says at which output tokens the draft model agrees with the target, and lookups depend only on the text. So
for greedy decoding the replayed rounds are exact, except for the last token or two, where the draft was not asked. When
sampling, acceptance is partly chance, and the recorded outcome stands in. Tokens that were not judged are assumed to
agree as often as those that were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...engines.base import Logits
from ...runtime.drafting.drafters import LOOKUPS, SHORTEST_ALONE, SHORTEST_BESIDE_A_MODEL
from ...runtime.drafting.guide import Guide
from ...runtime.drafting.lookup import Lookup
from ...runtime.drafting.names import model_of
from ...runtime.policy.cost_model import Costs, RoundCosts

# Tokens in the caches -> what rounds cost there.
NOTHING = np.zeros((1, 1), np.float32)
CostsAt = Callable[[int], RoundCosts]


@dataclass(frozen=True)
class Trace:
    """A generated request. tokens: prompt and output. agrees: of every output token, see `agreement`.

    limit: its max_new_tokens.
    """

    line: int
    route: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    agrees: tuple[bool | None, ...]
    limit: int

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True)
class ReplayedRound:
    """One round of a replay.

    context: tokens in the caches before the round, without the last token, whose row is not written yet. passes: of the
    draft model; more than draft tokens where one was left out, fewer where others were looked up. behind: rows that the
    draft model must catch up on first, since earlier rounds were looked up.
    """

    context: int
    num_drafted: int
    num_accepted: int
    passes: int
    behind: int = 0

    @property
    def looked_up(self) -> bool:
        """Whether the whole draft was."""
        return self.num_drafted > 0 and not self.passes


class Replayer:
    """Drafts rounds at any place of a trace, and judges them by its text."""

    def __init__(self, trace: Trace, drafter: str, logits: Sequence[float] = ()) -> None:
        """logits: the signal of the draft's confidence at every output token, for guides that read it."""
        self._trace, self._logits = trace, logits
        self._lookup, self._with_model = lookup_of(drafter), model_of(drafter) is not None
        self._agrees = known(trace) if self._with_model else []
        self._behind = 0

    @property
    def behind(self) -> int:
        """Rows that the draft model's cache lacks, but for the two that its next pass feeds."""
        return self._behind

    def round(self, place: int, count: int, guide: Guide | None = None) -> ReplayedRound:
        """The round behind `tokens[:place]`, of up to `count` draft tokens."""
        start = place - self._trace.prompt_tokens
        count = min(count, self._trace.limit - start - 1)
        right = agreeing(self._agrees[start:], count)
        by_model, found, passes = self._draft(place, count, right, guide)
        accepted = min(by_model, right)
        if accepted == by_model:
            accepted += matching(found, self._trace.tokens[place + by_model :])
        behind, self._behind = self._behind, max(0, accepted - by_model) if passes else self._behind + accepted + 1
        return ReplayedRound(place - 1, by_model + len(found), accepted, passes, behind if passes else 0)

    def _draft(self, place: int, count: int, right: int, guide: Guide | None) -> tuple[int, list[int], int]:
        """(tokens by the model, those that were looked up behind them, passes). right: how many the model has right."""
        tokens, lookup, by_model, passes = self._trace.tokens, self._lookup, 0, 0
        text = tokens[:place]
        while True:
            if lookup is not None and by_model <= right and by_model < count:
                found = lookup.find(text, count - by_model, tokens[place : place + by_model])
                if found and guide is not None:
                    found = found[: guide.looked_up(len(found), lookup.matched, by_model)]
                if found:
                    return by_model, found, passes
            if by_model == count or not self._with_model or (guide is not None and not guide.go_on(by_model)):
                return by_model, [], passes
            passes += 1
            if guide is not None and not guide.include(by_model, self._seen(place, min(by_model, right))):
                return by_model, [], passes
            by_model += 1

    def _seen(self, place: int, index: int) -> Logits:
        if not self._logits:
            return NOTHING
        index = min(place - self._trace.prompt_tokens + index, len(self._logits) - 1)
        return np.array([[self._logits[index]]], np.float32)


def replay(trace: Trace, drafter: str, num_draft_tokens: int) -> Iterator[ReplayedRound]:
    """The rounds of `trace` with `drafter` and a fixed number of draft tokens."""
    replayer, place = Replayer(trace, drafter), trace.prompt_tokens
    while place < len(trace.tokens):
        one = replayer.round(place, num_draft_tokens)
        yield one
        place += one.num_accepted + 1


def lookup_of(drafter: str) -> Lookup | None:
    """The lookup among what `drafter` is made of."""
    name, _, _ = drafter.partition("+")
    return LOOKUPS[name](SHORTEST_ALONE if name == drafter else SHORTEST_BESIDE_A_MODEL) if name in LOOKUPS else None


def cached(costs: Costs) -> CostsAt:
    """`costs.at` in steps of 16 tokens, cached, since replays call it for every round."""
    known = lru_cache(None)(costs.at)
    return lambda context: known(max(1, context - context % 16))


def round_seconds(round: ReplayedRound, at: CostsAt) -> float:
    """The time of the round by the measured costs."""
    costs = at(round.context + 1)
    if round.looked_up:
        return costs.looked_up(round.num_drafted)
    passes = round.passes - round.num_drafted  # more than tokens, or fewer
    return costs.rounds[round.num_drafted] + passes * costs.draft + round.behind * costs.draft_prefill


def plain_seconds(trace: Trace, at: CostsAt) -> float:
    """The time of plain decoding of the output by the measured costs."""
    return sum(at(place).plain for place in range(trace.prompt_tokens, len(trace.tokens)))


def known(trace: Trace) -> list[bool]:
    """`agrees` with unknown places filled by a repeatable draw at the rate of the request's known ones."""
    judged = [agrees for agrees in trace.agrees if agrees is not None]
    share = sum(judged) / len(judged) if judged else 0.0
    draw = random.Random(trace.line)
    return [draw.random() < share if agrees is None else agrees for agrees in trace.agrees]


def agreeing(agrees: Sequence[bool], count: int) -> int:
    """How many of `count` draft tokens the target would accept."""
    number = 0
    while number < min(count, len(agrees)) and agrees[number]:
        number += 1
    return number


def matching(found: Sequence[int], follows: Sequence[int]) -> int:
    """How many of `found` are what follows."""
    number = 0
    while number < min(len(found), len(follows)) and found[number] == follows[number]:
        number += 1
    return number
