"""Replays a recorded request with other drafters, under any schedule.

The trace says at which output tokens the draft model agrees with the target, and lookups depend only on the text. So
for greedy decoding the replayed rounds are exact, except for the last token or two, where the draft was not asked. When
sampling, acceptance is partly chance, and the recorded outcome is used. Tokens that were not judged are assumed to
agree as often as those that were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...engines.base import Logits
from ...runtime.drafting.drafters import lookups_of
from ...runtime.drafting.names import model_of
from ...runtime.drafting.ngram_cache import AnswerLookup, NgramCache
from ...runtime.drafting.rounds import DraftStop, RoundOutcome, SequenceState, Source
from ...runtime.policy.schedule import FixedSchedule, Schedule
from .traces import CostsAt, Trace, agreeing, known, matching

Runs = Mapping[str, Trace]  # one request, by drafter: as it was recorded with that one's draft
NOTHING = np.zeros((1, 1), np.float32)


@dataclass(frozen=True)
class ReplayedRound:
    """One round of a replay.

    context: tokens in the caches before the round, without the last token, whose row is not written yet.
    passes: of the draft model; more than draft tokens if one was left out, fewer if others were looked up.
    missing_rows: rows that the draft model must catch up on first, since earlier rounds were drafted without it.
    num_looked_up: how many of the draft tokens, the last ones, were looked up.
    """

    context: int
    num_drafted: int
    num_accepted: int
    passes: int
    missing_rows: int = 0
    num_looked_up: int = 0

    @property
    def outcome(self) -> RoundOutcome:
        """What a schedule learns of the round."""
        sources: list[Source] = ["model"] * self.num_drafted
        sources[self.num_drafted - self.num_looked_up :] = ["lookup"] * self.num_looked_up
        return RoundOutcome((0,) * self.num_drafted, tuple(sources), self.num_accepted, (0,))

    def seconds(self, at: CostsAt) -> float:
        """The time of the round by the measured costs."""
        costs = at(self.context + 1)
        rows = self.missing_rows if self.passes else 0
        return costs.seconds(self.num_drafted, self.passes) + rows * costs.draft_prefill


def replay(
    runs: Runs,
    schedule: Schedule,
    logits: Mapping[str, Sequence[float]] | None = None,
    answers: NgramCache | None = None,
) -> Iterator[tuple[str, ReplayedRound]]:
    """The rounds of a request under `schedule`, each with its drafter.

    runs: of equal length; the first of them drafts where the schedule names none. Under greedy decoding all have the
    same text; when sampling, a round continues in the record of its own drafter at the same position. logits: by
    drafter, see `Replayer`. answers: of the session before this request, to which its own is added.

    Of several drafters, the draft's prefill counts for every draft but the first that drafts: a draft that drafts alone
    has to prefill too, and that is not counted either.
    """
    first, trace = next(iter(runs.items()))
    answers = NgramCache() if answers is None else answers
    replayers = {name: Replayer(one, name, (logits or {}).get(name, ()), answers) for name, one in runs.items()}
    place, prefill = trace.prompt_tokens, trace.prompt_tokens if len(runs) > 1 else 0
    missed = dict.fromkeys(runs, prefill)  # rows that a draft's cache lacks since others drafted
    while place < len(trace.tokens):
        plan = schedule.plan(SequenceState(place, lambda name: missed[name] + replayers[name].missing_rows + 1))
        name = plan.drafter or first
        one = replayers[name].round(place, plan.num_draft_tokens, plan.draft_stop)
        if one.passes:
            one = replace(one, missing_rows=one.missing_rows + missed[name] - prefill)
            missed[name] = prefill = 0
        yield name, one
        schedule.observe(one.outcome)
        place += one.num_accepted + 1
        for other in missed:
            missed[other] += (one.num_accepted + 1) * (other != name)
    answers.add(trace.tokens, trace.prompt_tokens, None)


def replay_fixed(trace: Trace, drafter: str, num_draft_tokens: int) -> Iterator[ReplayedRound]:
    return (one for _, one in replay({drafter: trace}, FixedSchedule(num_draft_tokens)))


class Replayer:
    """Drafts rounds at any position of a trace, and judges them by its text."""

    def __init__(self, trace: Trace, drafter: str, logits: Sequence[float], answers: NgramCache) -> None:
        """logits: the draft's confidence at every output token, for guides that read it."""
        self._trace, self._logits = trace, logits
        self._lookups = lookups_of(drafter, AnswerLookup(answers, None))
        self._with_model = model_of(drafter) is not None
        self._agrees = known(trace) if self._with_model else []
        self.missing_rows = 0  # of the draft model's cache, not counting the two that its next pass feeds

    def round(self, place: int, count: int, draft_stop: DraftStop | None = None) -> ReplayedRound:
        """The round after `tokens[:place]`, with up to `count` draft tokens."""
        start = place - self._trace.prompt_tokens
        count = min(count, self._trace.limit - start - 1)
        right = agreeing(self._agrees[start : start + count], count)
        by_model, passes, looked_up = self._draft(place, count, right, draft_stop)
        accepted = min(by_model, right)
        if accepted == by_model:
            accepted += matching(looked_up, self._trace.tokens[place + by_model :])
        missing_rows = self.missing_rows if passes else 0
        self.missing_rows = max(0, accepted - by_model) if passes else self.missing_rows + accepted + 1
        return ReplayedRound(
            context=place - 1,
            num_drafted=by_model + len(looked_up),
            num_accepted=accepted,
            passes=passes,
            missing_rows=missing_rows,
            num_looked_up=len(looked_up),
        )

    def _draft(self, place: int, count: int, right: int, draft_stop: DraftStop | None) -> tuple[int, int, list[int]]:
        """(the model's tokens, its passes, the looked-up tokens after those). right: how many of the model's are."""
        tokens, by_model, passes = self._trace.tokens, 0, 0
        text = tokens[:place]
        while True:
            for lookup in self._lookups if by_model <= right and by_model < count else ():
                looked_up = lookup.find(text, count - by_model, tokens[place : place + by_model])
                if looked_up and draft_stop is not None:
                    looked_up = looked_up[: draft_stop.looked_up(lookup.odds, by_model)]
                if looked_up:
                    return by_model, passes, looked_up
            if by_model == count or not self._with_model or (draft_stop is not None and not draft_stop.go_on(by_model)):
                return by_model, passes, []
            passes += 1
            if draft_stop is not None and not draft_stop.include(by_model, self._seen(place, min(by_model, right))):
                return by_model, passes, []
            by_model += 1

    def _seen(self, place: int, index: int) -> Logits:
        if not self._logits:
            return NOTHING
        index = min(place - self._trace.prompt_tokens + index, len(self._logits) - 1)
        return np.array([[self._logits[index]]], np.float32)


def plain_seconds(trace: Trace, at: CostsAt) -> float:
    """The time of plain decoding of the output by the measured costs."""
    return sum(at(place).plain for place in range(trace.prompt_tokens, len(trace.tokens)))
