"""Replays a recorded request with other drafters and other numbers of draft tokens.

The trace says at which output tokens the draft model agrees with the target, and lookups depend only on the text. So
for greedy decoding the replayed rounds are exact, except for the last token or two, where the draft was not asked. When
sampling, acceptance is partly chance, and the recorded outcome is used. Tokens that were not judged are assumed to
agree as often as those that were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...engines.base import Logits
from ...runtime.drafting.drafters import LOOKUPS, SHORTEST_ALONE, SHORTEST_BESIDE_A_MODEL
from ...runtime.drafting.lookup import Lookup
from ...runtime.drafting.names import cascade_source_of, model_of
from ...runtime.drafting.rounds import Guide, RoundOutcome, Source
from .guessed_replay import CascadeReplay
from .traces import CostsAt, Trace, agreeing, known, matching

NOTHING = np.zeros((1, 1), np.float32)


@dataclass(frozen=True)
class ReplayedRound:
    """One round of a replay.

    context: tokens in the caches before the round, without the last token, whose row is not written yet.
    passes: of the draft model; more than draft tokens if one was left out, fewer if others were looked up.
    behind: rows that the draft model must catch up on first, since earlier rounds were looked up.
    saved, guess_rows, guess_seconds: if something guesses for the draft, the passes that were saved, the additional
    rows of guesses, and the time of the guessing.
    num_found: how many of the draft's tokens, the last ones, were looked up.
    """

    context: int
    num_drafted: int
    num_accepted: int
    passes: int
    behind: int = 0
    saved: int = 0
    guess_rows: int = 0
    guess_seconds: float = 0.0
    num_found: int = 0

    @property
    def outcome(self) -> RoundOutcome:
        """What a schedule learns of the round."""
        sources: list[Source] = ["model"] * self.num_drafted
        sources[self.num_drafted - self.num_found :] = ["lookup"] * self.num_found
        return RoundOutcome((0,) * self.num_drafted, tuple(sources), self.num_accepted, (0,))

    @property
    def looked_up(self) -> bool:
        """Whether the whole draft was looked up."""
        return self.num_drafted > 0 and not self.passes


class Replayer:
    """Drafts rounds at any position of a trace, and judges them by its text."""

    def __init__(self, trace: Trace, drafter: str, logits: Sequence[float] = ()) -> None:
        """logits: the signal of the draft's confidence at every output token, for guides that read it."""
        self._trace, self._logits = trace, logits
        self._lookup, self._with_model = lookup_of(drafter), model_of(drafter) is not None
        self._agrees = known(trace) if self._with_model else []
        self._guessed = CascadeReplay(trace, drafter) if cascade_source_of(drafter) else None
        self._behind = 0

    @property
    def behind(self) -> int:
        """Rows that the draft model's cache lacks, not counting the two that its next pass feeds."""
        return self._behind

    def round(self, place: int, count: int, guide: Guide | None = None) -> ReplayedRound:
        """The round after `tokens[:place]`, with up to `count` draft tokens."""
        start = place - self._trace.prompt_tokens
        count = min(count, self._trace.limit - start - 1)
        right = agreeing(self._agrees[start:], count)
        if self._guessed is not None:
            return self._by_guesses(self._guessed, place, count, right, guide)
        by_model, found, passes = self._draft(place, count, right, guide)
        accepted = min(by_model, right)
        if accepted == by_model:
            accepted += matching(found, self._trace.tokens[place + by_model :])
        behind, self._behind = self._behind, max(0, accepted - by_model) if passes else self._behind + accepted + 1
        behind = behind if passes else 0
        return ReplayedRound(place - 1, by_model + len(found), accepted, passes, behind, num_found=len(found))

    def _by_guesses(
        self, guessed: CascadeReplay, place: int, count: int, right: int, guide: Guide | None
    ) -> ReplayedRound:
        seen = [self._seen(place, min(index, right)) for index in range(count)]
        one, behind = guessed.draft(place, count, self._behind, guide, seen), self._behind
        accepted = min(one.drafted, right)
        self._behind = 0 if one.asked else behind + accepted + 1
        behind = behind if one.asked else 0
        return ReplayedRound(place - 1, one.drafted, accepted, one.asked, behind, one.saved, one.rows, one.seconds)

    def _draft(self, place: int, count: int, right: int, guide: Guide | None) -> tuple[int, list[int], int]:
        """(number of the model's tokens, the looked-up tokens after them, passes). right: how many of the model's
        tokens are right.
        """
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
    """The lookup that is part of `drafter`, None if there is none."""
    name, _, _ = drafter.partition("+")
    return LOOKUPS[name](SHORTEST_ALONE if name == drafter else SHORTEST_BESIDE_A_MODEL) if name in LOOKUPS else None


def round_seconds(round: ReplayedRound, at: CostsAt) -> float:
    """The time of the round by the measured costs."""
    costs = at(round.context + 1)
    if round.looked_up:
        return costs.looked_up(round.num_drafted)
    passes = round.passes - round.saved - round.num_drafted  # beyond one per draft token; negative if fewer
    rows = round.behind * costs.draft_prefill + round.guess_rows * costs.draft_row
    return costs.rounds[round.num_drafted] + passes * costs.draft + rows + round.guess_seconds


def plain_seconds(trace: Trace, at: CostsAt) -> float:
    """The time of plain decoding of the output by the measured costs."""
    return sum(at(place).plain for place in range(trace.prompt_tokens, len(trace.tokens)))
